"""Evaluation between rounds: when, of whom, and the same as at the end."""

import csv
import shutil

import attrs
import numpy as np
import pytest

from tests.testing import tiny_task
from tff_algos import ClientMemory, experiments
from tff_algos.experiments import cohorts, report
from tff_algos.experiments.periodic_evaluation import is_due
from tff_algos.hyperparameters import HyperparameterError


def _with_test_set(task):
    """The task with an undivided test set: that of the clients held out."""
    parts = [task.examples(client_id, "test") for client_id in task.eval_client_ids]
    test_set = tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return attrs.evolve(task, test_examples=test_set)


TASK = _with_test_set(tiny_task.make())
SETTINGS = {"clients_per_round": 3, "personalization_epochs": 2, "eval_clients": 0}


def test_it_is_due_every_so_often_and_after_the_last_round():
    assert [n for n in range(1, 8) if is_due(n, 3, 7)] == [3, 6, 7]
    assert not any(is_due(n, 0, 7) for n in range(1, 8))


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return experiments.run(
        "fedavg",
        TASK,
        output_dir=tmp_path_factory.mktemp("run"),
        total_rounds=3,
        rounds_per_eval=2,
        rounds_per_personalization=2,
        seen_eval_clients=4,
        **SETTINGS,
    )


def test_personalized_accuracies_are_columns(result):
    accuracy = result.metrics["personalization/personalized_accuracy"]
    assert np.isnan(accuracy[0]) and not np.isnan(accuracy[1:]).any()
    people = result.summary["personalization"]
    assert accuracy[-1] == people["personalized_accuracy"]
    seen = result.summary["personalization_seen"]
    name = "personalization_seen/initial_accuracy_std"
    assert result.metrics[name][-1] == seen["initial_accuracy_std"]
    assert people["num_clients"] == 5 and seen["num_clients"] == 4


def test_seen_clients_are_training_clients_with_rows_of_their_own(result):
    with open(result.spec.output_dir / "per_client.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    seen = {row["client_id"] for row in rows if row["seen"] == "true"}
    assert len(seen) == 4 and seen < set(TASK.train_client_ids)
    unseen = {row["client_id"] for row in rows if row["seen"] == "false"}
    assert unseen == set(TASK.eval_client_ids)
    plots = {path.name for path in (result.spec.output_dir / "plots").iterdir()}
    assert {"personalization_by_epoch.png", "personalization_by_epoch_seen.png"} < plots


def test_the_server_model_is_evaluated_on_both(result):
    last = result.summary["final_metrics"]
    for kind, ids in (
        ("eval", TASK.eval_client_ids),
        ("eval_seen", result.spec.seen_eval_client_ids()),
    ):
        right = total = 0
        for client_id in ids:
            x, y = TASK.examples(client_id, "test")
            kernel, bias = map(np.asarray, result.weights.trainable)
            right += np.sum(np.argmax(x @ kernel + bias, axis=1) == y)
            total += len(y)
        assert last[f"{kind}/accuracy"] == pytest.approx(right / total)


def test_a_run_that_personalizes_at_the_end_alone_ends_the_same(result, tmp_path):
    other = experiments.run(
        "fedavg", TASK, output_dir=tmp_path, total_rounds=3, **SETTINGS
    )
    assert other.clients == result.clients[: len(other.clients)]
    assert "personalization/initial_accuracy" not in other.metrics


def test_a_run_can_start_from_the_model_of_another(result, tmp_path):
    other = experiments.run(
        "reptile",
        TASK,
        output_dir=tmp_path,
        total_rounds=0,
        initial_model=str(result.spec.output_dir),
        **SETTINGS,
    )
    for ours, theirs in zip(
        other.weights.trainable, result.weights.trainable, strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    # Reptile personalizes with a learning rate of its own.
    for ours, theirs in zip(other.clients, result.clients, strict=False):
        assert ours.accuracy[0] == theirs.accuracy[0]
        assert ours.loss[0] == theirs.loss[0]


def test_a_run_goes_on_without_the_model_that_it_started_from(result, tmp_path):
    first = tmp_path / "first"
    shutil.copytree(result.spec.output_dir, first)
    settings = {
        "output_dir": tmp_path / "second",
        "initial_model": str(first),
        **SETTINGS,
    }
    experiments.run("fedavg", TASK, total_rounds=1, **settings)
    shutil.rmtree(first)
    longer = experiments.run("fedavg", TASK, total_rounds=2, **settings)
    assert longer.rounds_done == 2
    with pytest.raises(HyperparameterError, match="initial_model=.*no such folder"):
        experiments.run(
            "fedavg",
            TASK,
            total_rounds=2,
            **{**settings, "output_dir": tmp_path / "third"},
        )


@pytest.fixture(scope="module")
def own_result(tmp_path_factory):
    return experiments.run(
        "ditto",
        TASK,
        output_dir=tmp_path_factory.mktemp("ditto"),
        total_rounds=2,
        client_learning_rate=0.5,
        **SETTINGS,
    )


def _accuracy(weights, client_id):
    kernel, bias = weights.trainable
    x, y = TASK.examples(client_id, "test")
    return np.mean(np.argmax(x @ kernel + bias, axis=1) == y)


def test_where_clients_keep_models_those_that_took_part_are_evaluated(own_result):
    spec = own_result.spec
    took_part = set()
    for number in (1, 2):
        took_part.update(cohorts.cohort_ids(spec.stages[0], TASK, 0, number))
    seen = {client.client_id for client in own_result.clients if client.seen}
    assert seen == took_part and 3 <= len(seen) < len(TASK.train_client_ids)


def test_own_accuracies_are_those_of_the_models_that_clients_keep(own_result):
    (stage,) = own_result.spec.stages
    memory = ClientMemory.of_process(stage.process, len(TASK.train_client_ids))
    state = stage.process.initialize()
    for number in (1, 2):
        ids = cohorts.cohort_ids(stage, TASK, 0, number)
        data = cohorts.cohort_datasets(stage, TASK, 0, number)
        positions = [cohorts.positions(TASK)[client_id] for client_id in ids]
        output = stage.process.next(state, cohorts.with_memory(data, positions, memory))
        memory.update(output.metrics["client_work"]["memory"])
        state = output.state
    server = stage.process.get_model_weights(state)
    differ = 0
    for client in own_result.clients:
        own = server
        if client.seen:
            row = memory.row(cohorts.positions(TASK)[client.client_id])
            own = stage.process.get_personal_weights(server, row)
        assert client.own_accuracy == pytest.approx(_accuracy(own, client.client_id))
        differ += client.own_accuracy != client.accuracy[0]
    assert differ


def test_own_models_are_in_the_summary_the_table_and_the_files(own_result):
    seen = own_result.summary["personalization_seen"]
    own = [c.own_accuracy for c in own_result.clients if c.seen]
    assert seen["own_accuracy"] == pytest.approx(np.mean(own))
    table = report.results_table("Ditto", own_result.summary)
    assert "accuracy of own models, mean (std) over clients" in table
    with open(own_result.spec.output_dir / "per_client.csv", newline="") as file:
        rows = {row["client_id"]: row for row in csv.DictReader(file)}
    for client in own_result.clients:
        assert float(rows[client.client_id]["own_accuracy"]) == client.own_accuracy


def test_where_clients_keep_none_there_are_none(result):
    assert all(client.own_accuracy is None for client in result.clients)
    assert "own_accuracy" not in result.summary["personalization"]


@pytest.mark.parametrize(
    ("epochs", "phase"), [(0, "evaluation"), (1, "personalization")]
)
def test_the_progress_says_what_is_done(tmp_path, capfd, epochs, phase):
    settings = {**SETTINGS, "personalization_epochs": epochs, "total_rounds": 1}
    experiments.run("fedavg", TASK, output_dir=tmp_path, **settings)
    said = capfd.readouterr().err
    assert f"{phase}: client 5/5" in said
    assert said.count(": client 5/5") == 1
