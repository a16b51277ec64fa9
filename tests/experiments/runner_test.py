"""Runs from start to end, stopped and gone on with, and refused."""

import asyncio
import csv
import json
import os
import signal
import threading

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tff_algos
from tests.testing import tiny_task
from tff_algos.clients.batching import BatchSpec
from tff_algos.experiments import run_spec, runner
from tff_algos.experiments.errors import CohortSizeError, OutputError, ResumeError
from tff_algos.experiments.metrics_log import read_rows
from tff_algos.experiments.model_files import load_model
from tff_algos.experiments.stage import Stage

SGD = tff.learning.optimizers.build_sgdm
ADAM = tff.learning.optimizers.build_adam


class Interrupted(Exception):
    """Stands for whatever ends a program."""


class Intercepted:
    """A learning process that calls `before_round` before each `next`."""

    def __init__(self, process, before_round):
        self._process = process
        self.next = _InterceptedNext(process.next, before_round)

    def __getattr__(self, name):
        return getattr(self._process, name)


class _InterceptedNext:
    def __init__(self, computation, before_round):
        self.type_signature = computation.type_signature
        self._computation, self._before_round = computation, before_round
        self._calls = 0

    def __call__(self, state, data):
        self._calls += 1
        self._before_round(self._calls)
        return self._computation(state, data)


@pytest.fixture(scope="module")
def stages():
    task = tiny_task.make()
    momentum = tff_algos.build_fed_avg_m(task.model, SGD(0.5), server_momentum=0.5)
    reptile = tff_algos.build_reptile(task.model, SGD(0.5), ADAM(0.1))
    return (
        Stage(
            name="first",
            process=momentum,
            num_rounds=5,
            clients_per_round=3,
            batches=BatchSpec(batch_size=4, num_epochs=2),
        ),
        Stage(
            name="second",
            process=reptile,
            num_rounds=4,
            clients_per_round=2,
            batches=BatchSpec(batch_size=4, num_steps=3),
        ),
    )


def make_spec(stages, directory, **changes):
    options = {
        "rounds_per_eval": 2,
        "rounds_per_checkpoint": 2,
        "eval_clients": 0,
        "personalization_epochs": 2,
        "personalization_batch_size": 4,
    } | changes.pop("options", {})
    return run_spec.RunSpec(
        **{
            "title": "a test",
            "stages": stages,
            "task": tiny_task.make(),
            "output_dir": directory,
            "hyperparameters": {"algo": "test", "rate": 0.5, "total_rounds": 9},
            "personalization_optimizer": SGD(0.5),
            "options": run_spec.RunOptions(**options),
            **changes,
        }
    )


def intercept(stages, before_round):
    """Calls `before_round` before the rounds of the stages, counted apart."""
    return tuple(
        attrs.evolve(stage, process=Intercepted(stage.process, before_round))
        for stage in stages
    )


@pytest.fixture(scope="module")
def uninterrupted(stages, tmp_path_factory):
    directory = tmp_path_factory.mktemp("uninterrupted")
    return directory, runner.run(make_spec(stages, directory))


def numbers(directory):
    """All that must not depend on when a run was stopped."""
    rows = read_rows(directory / "metrics.csv")
    for row in rows:
        row.pop("seconds")
    return rows, (directory / "per_client.csv").read_text()


def clients_after(directory, epoch):
    """The rows of per_client.csv after that many epochs of personalization."""
    with open(directory / "per_client.csv", newline="") as file:
        return [row for row in csv.DictReader(file) if int(row["epoch"]) == epoch]


def _tensorboard_tags(directory):
    events = EventAccumulator(str(directory / "tensorboard")).Reload()
    return set(events.summary_metadata)


def test_the_results_folder_holds_everything(uninterrupted):
    directory, result = uninterrupted
    assert result.rounds_done == 9 and result.stopped_by is None
    names = {path.name for path in directory.iterdir()}
    assert names == {
        "checkpoints",
        "config.json",
        "metrics.csv",
        "model",
        "per_client.csv",
        "plots",
        "summary.json",
        "tensorboard",
    }
    tags = _tensorboard_tags(directory)
    plots = {f"plots/{path.stem}" for path in (directory / "plots").iterdir()}
    assert plots <= tags
    assert {"flags", "_hparams_/session_start_info"} <= tags
    assert {"train/loss", "eval/accuracy", "seconds"} <= tags
    assert {path.name for path in (directory / "plots").iterdir()} == {
        "accuracy_distribution.png",
        "fairness.png",
        "learning_curves.png",
        "personalization_by_client.png",
        "personalization_by_epoch.png",
    }
    assert all(path.stat().st_size > 5000 for path in (directory / "plots").iterdir())
    rows = read_rows(directory / "metrics.csv")
    assert [row["round"] for row in rows] == list(range(1, 10))
    assert [row["stage"] for row in rows] == ["first"] * 5 + ["second"] * 4
    evaluated = [row["round"] for row in rows if "eval/accuracy" in row]
    assert evaluated == [2, 4, 6, 8, 9]
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]


def test_the_summary_is_what_the_clients_file_says(uninterrupted):
    directory, _ = uninterrupted
    summary = json.loads((directory / "summary.json").read_text())
    people = summary["personalization"]
    for kind, epoch in (("initial", 0), ("personalized", 2)):
        clients = clients_after(directory, epoch)
        assert [row["client_id"] for row in clients] == ["8", "9", "10", "11", "12"]
        values = [float(row["accuracy"]) for row in clients]
        assert people[f"{kind}_accuracy"] == pytest.approx(np.mean(values))
        assert people[f"{kind}_accuracy_std"] == pytest.approx(np.std(values))
    assert summary["personalization"]["num_clients"] == 5
    assert summary["dataset"] == "tiny_generated"


def test_the_initial_accuracy_is_that_of_the_final_model(uninterrupted, stages):
    directory, _ = uninterrupted
    rows = read_rows(directory / "metrics.csv")
    clients = clients_after(directory, 0)
    sizes = [int(row["num_test_examples"]) for row in clients]
    initial = [float(row["accuracy"]) for row in clients]
    assert rows[-1]["eval/accuracy"] == pytest.approx(
        np.average(initial, weights=sizes), rel=1e-6
    )


@pytest.mark.parametrize(
    "fail_before",
    [
        pytest.param(1, marks=pytest.mark.slow),
        2,
        3,
        pytest.param(4, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_died_goes_on_to_the_same_numbers(
    stages, uninterrupted, tmp_path, fail_before
):
    def die(call):
        if call == fail_before:
            raise Interrupted

    first, second = stages
    for mortal in (
        intercept([first], die) + (second,),
        (first,) + intercept([second], die),
    ):
        with pytest.raises(Interrupted):
            runner.run(make_spec(mortal, tmp_path))
    runner.run(make_spec(stages, tmp_path))
    assert numbers(tmp_path) == numbers(uninterrupted[0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_same_run_goes_on(
    stages, uninterrupted, tmp_path, number
):
    def ask_to_stop(call):
        if call == 3:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    result = runner.run(make_spec(intercept(stages, ask_to_stop), tmp_path))
    assert result.stopped_by == number and result.summary is None
    assert result.rounds_done == 3  # The round that ran was finished, and saved.
    assert signal.getsignal(number) is before
    assert not (tmp_path / "summary.json").exists()
    saved = tf.saved_model.load(tmp_path / "model" / "saved_model")
    for found, own in zip(saved.trainable, result.weights.trainable, strict=True):
        np.testing.assert_array_equal(found, own)
    result = runner.run(make_spec(stages, tmp_path))
    assert result.rounds_done == 9
    assert numbers(tmp_path) == numbers(uninterrupted[0])


@pytest.mark.parametrize("fails", ["round", "evaluation"])
def test_an_error_after_a_signal_is_shown_and_what_is_done_is_saved(
    stages, tmp_path, monkeypatch, capfd, fails
):
    def stop_and_fail(*_):
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError("the worker\nis gone")

    def fail_in_round_3(call):
        if call == 3 and fails == "round":
            stop_and_fail()

    metrics = runner.PeriodicEvaluation.metrics

    def fail_after_round_3(self, round_num, weights):
        if round_num == 3 and fails == "evaluation":
            stop_and_fail()
        return metrics(self, round_num, weights)

    monkeypatch.setattr(runner.PeriodicEvaluation, "metrics", fail_after_round_3)
    result = runner.run(make_spec(intercept(stages, fail_in_round_3), tmp_path))
    assert result.stopped_by == signal.SIGINT
    # Without its evaluation, a round does not count, and runs again.
    assert result.rounds_done == 2
    assert "after the signal: the worker is gone" in capfd.readouterr().err
    assert len(read_rows(tmp_path / "metrics.csv")) == result.rounds_done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_round_1_is_told_that_it_ends_and_saves_it(
    stages, tmp_path, monkeypatch, number
):
    answer, answered = runner.outlook.stop_notice, threading.Event()
    notices = []

    def stop_notice(*arguments):
        notices.append(answer(*arguments))
        answered.set()
        return notices[-1]

    def ask_to_stop(self, round_num, weights):
        os.kill(os.getpid(), number)
        answered.wait(10)
        return {}

    monkeypatch.setattr(runner.outlook, "stop_notice", stop_notice)
    monkeypatch.setattr(runner.PeriodicEvaluation, "metrics", ask_to_stop)
    result = runner.run(make_spec(stages, tmp_path))
    assert result.rounds_done == 1
    assert notices[0].startswith("stopping after round 1"), notices
    assert (tmp_path / "checkpoints" / "round_1").exists()
    assert load_model(tmp_path).round_num == 1


@pytest.mark.parametrize(
    ("where", "name"),
    [(runner._Training, "_restore"), (runner.outlook, "estimate")],
)
def test_a_signal_before_a_run_resumes_is_told_what_is_saved(
    stages, tmp_path, monkeypatch, where, name
):
    def stop_in_round_3(call):
        if call == 3:
            os.kill(os.getpid(), signal.SIGINT)

    runner.run(make_spec(intercept(stages, stop_in_round_3), tmp_path))
    interrupted, answer = getattr(where, name), runner.outlook.stop_before_rounds
    answered, notices = threading.Event(), []

    def stop_before_rounds(*arguments):
        notices.append(answer(*arguments))
        answered.set()
        return notices[-1]

    def ask_to_stop(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        answered.wait(10)
        return interrupted(*arguments)

    monkeypatch.setattr(runner.outlook, "stop_before_rounds", stop_before_rounds)
    monkeypatch.setattr(where, name, ask_to_stop)
    assert runner.run(make_spec(stages, tmp_path)).rounds_done == 3
    assert notices == ["stopping before round 4; the last saved round is 3."]


def test_a_signal_at_the_end_of_a_round_is_told_that_no_other_begins(
    stages, tmp_path, monkeypatch, capsys
):
    advance = runner.Progress.advance

    def ask_to_stop(self, *arguments):
        advance(self, *arguments)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(runner.Progress, "advance", ask_to_stop)
    result = runner.run(make_spec(stages, tmp_path))
    assert result.rounds_done == 1
    assert "stopping after round 1 " in capsys.readouterr().err


def test_a_second_signal_does_not_wait(stages, tmp_path):
    def insist(call):
        if call == 2:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        runner.run(make_spec(intercept(stages, insist), tmp_path))


def test_a_run_works_inside_a_running_event_loop(stages, uninterrupted, tmp_path):
    async def notebook_cell():
        return runner.run(make_spec(stages, tmp_path))

    assert asyncio.run(notebook_cell()).rounds_done == 9
    assert numbers(tmp_path) == numbers(uninterrupted[0])


def test_a_finished_run_only_evaluates_again(stages, uninterrupted, tmp_path, capfd):
    runner.run(make_spec(stages, tmp_path))

    def never(call):
        raise AssertionError(f"round {call} ran again")

    assert runner.run(make_spec(intercept(stages, never), tmp_path)).rounds_done == 9
    assert numbers(tmp_path) == numbers(uninterrupted[0])
    assert ": all 9 rounds are done; evaluating again.\n" in capfd.readouterr().err


def test_a_resumed_run_tells_which_programs_ran_it(stages, tmp_path):
    stage = attrs.evolve(stages[0], num_rounds=2)

    def run(version, rounds):
        config = {"command": ["main.py"], "versions": {"tensorflow": version}}
        spec = make_spec(
            (attrs.evolve(stage, num_rounds=rounds),),
            tmp_path,
            config=config,
            hyperparameters={"algo": "test", "total_rounds": rounds},
            options={"personalization_epochs": 0},
        )
        runner.run(spec)
        return json.loads((tmp_path / "config.json").read_text())

    assert "earlier_programs" not in run("1", 2)
    assert "earlier_programs" not in run("1", 3)
    for _ in range(2):
        config = run("2", 4)
        assert config["versions"] == {"tensorflow": "2"}
        (earlier,) = config["earlier_programs"]
        assert earlier["versions"] == {"tensorflow": "1"}
        assert earlier["rounds_done"] == 3


def test_a_run_that_cannot_be_resumed_keeps_its_configuration(stages, tmp_path):
    def spec(rounds):
        stage = attrs.evolve(stages[0], num_rounds=rounds)
        settings = {"algo": "test", "total_rounds": rounds}
        return make_spec((stage,), tmp_path, hyperparameters=settings)

    runner.run(spec(2))
    before = (tmp_path / "config.json").read_text()
    (tmp_path / "checkpoints" / "round_2" / "saved_model.pb").write_bytes(b"damaged")
    with pytest.raises(ResumeError, match="round_2 cannot be read"):
        runner.run(spec(4))
    assert (tmp_path / "config.json").read_text() == before


def test_another_seed_gives_other_numbers(stages, uninterrupted, tmp_path):
    runner.run(make_spec(stages, tmp_path, options={"seed": 1}))
    assert numbers(tmp_path) != numbers(uninterrupted[0])


def test_changed_hyperparameters_are_refused_by_name(stages, uninterrupted):
    directory, _ = uninterrupted
    before = (directory / "config.json").read_text()
    changed = {"algo": "test", "rate": 0.25, "total_rounds": 9, "new": 1}
    with pytest.raises(
        ResumeError, match=r"--new: was None, now 1; --rate: was 0\.5, now 0\.25"
    ):
        runner.run(make_spec(stages, directory, hyperparameters=changed))
    assert (directory / "config.json").read_text() == before


def test_a_single_stage_may_be_trained_longer(stages, tmp_path):
    def spec(rounds, directory):
        stage = attrs.evolve(stages[0], num_rounds=rounds)
        return make_spec(
            (stage,),
            directory,
            hyperparameters={"algo": "test", "total_rounds": rounds},
            options={"rounds_per_eval": 0},
        )

    runner.run(spec(2, tmp_path / "grown"))
    runner.run(spec(4, tmp_path / "grown"))
    runner.run(spec(4, tmp_path / "at_once"))
    assert numbers(tmp_path / "grown") == numbers(tmp_path / "at_once")
    with pytest.raises(ResumeError, match="--total_rounds: was 4, now 3"):
        runner.run(spec(3, tmp_path / "grown"))


def spec_of_a_stage(stages, directory, rounds, stop_in=None):
    """The first stage's run, which may be asked to stop in one of its rounds."""

    def ask_to_stop(call):
        if call == stop_in:
            os.kill(os.getpid(), signal.SIGINT)

    stage = attrs.evolve(stages[0], num_rounds=rounds)
    return make_spec(
        intercept((stage,), ask_to_stop),
        directory,
        hyperparameters={"algo": "test", "total_rounds": rounds},
    )


@pytest.mark.extended
def test_a_run_that_is_to_end_where_it_was_stopped_is_evaluated_there(stages, tmp_path):
    runner.run(spec_of_a_stage(stages, tmp_path / "at_once", 3))
    # Rounds 2 and 4 are evaluated, and the last one.
    stopped = runner.run(spec_of_a_stage(stages, tmp_path / "stopped", 5, stop_in=3))
    assert stopped.rounds_done == 3
    runner.run(spec_of_a_stage(stages, tmp_path / "stopped", 3))
    assert numbers(tmp_path / "stopped") == numbers(tmp_path / "at_once")


@pytest.mark.extended
def test_a_finished_run_that_goes_on_and_is_stopped_is_not_finished(stages, tmp_path):
    runner.run(spec_of_a_stage(stages, tmp_path, 2))
    assert load_model(tmp_path).round_num is None
    stopped = runner.run(spec_of_a_stage(stages, tmp_path, 9, stop_in=1))
    assert stopped.rounds_done == 3
    assert not (tmp_path / "summary.json").exists()
    found = load_model(tmp_path)
    assert found.round_num == 3
    for one, other in zip(
        found.weights.trainable, stopped.weights.trainable, strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_noresume_refuses_a_folder_that_holds_a_run(stages, uninterrupted):
    with pytest.raises(ResumeError, match=r"holds a run and --noresume"):
        runner.run(make_spec(stages, uninterrupted[0], resume=False))


def test_a_corrupt_checkpoint_is_named_and_the_one_before_it_serves(
    stages, uninterrupted, tmp_path
):
    def die(call):
        if call == 5:
            raise Interrupted

    with pytest.raises(Interrupted):
        runner.run(make_spec(intercept(stages, die), tmp_path))
    newest = tmp_path / "checkpoints" / "round_4"
    (newest / "saved_model.pb").write_bytes(b"garbage")
    with pytest.raises(ResumeError, match=r"round_4 cannot be read.*delete"):
        runner.run(make_spec(stages, tmp_path))
    for path in sorted(newest.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    newest.rmdir()
    runner.run(make_spec(stages, tmp_path))
    assert numbers(tmp_path) == numbers(uninterrupted[0])


def test_a_folder_of_something_else_is_refused(stages, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ResumeError, match="is not the configuration of a run"):
        runner.run(make_spec(stages, tmp_path))


def test_a_folder_that_cannot_be_made_is_named(stages, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="--output_dir=.*file/run cannot be written"):
        runner.run(make_spec(stages, tmp_path / "file" / "run"))


def test_a_cohort_larger_than_the_population_is_refused(stages, tmp_path):
    stage = attrs.evolve(stages[0], clients_per_round=9)
    with pytest.raises(
        CohortSizeError, match="--clients_per_round=9 is more than the 8"
    ):
        runner.run(make_spec((stage,), tmp_path))


def test_a_pooled_stage_trains_on_the_pooled_examples(tmp_path):
    task = tiny_task.make()
    stage = Stage(
        name="centralized",
        process=tff_algos.build_centralized(task.model, ADAM(0.05)),
        num_rounds=3,
        clients_per_round=None,
        batches=BatchSpec(batch_size=8, num_steps=10),
    )
    runner.run(make_spec((stage,), tmp_path))
    rows = read_rows(tmp_path / "metrics.csv")
    assert [row["train/num_examples"] for row in rows] == [80] * 3
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]
    assert "bytes_down" not in rows[-1], "nothing is sent where all examples are"


def test_personalization_can_be_left_out(stages, tmp_path):
    result = runner.run(
        make_spec(
            stages, tmp_path, options={"personalization_epochs": 0, "eval_clients": 2}
        )
    )
    people = result.summary["personalization"]
    assert people["num_clients"] == 2
    assert people["personalized_accuracy"] == people["initial_accuracy"]
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        "accuracy_distribution.png",
        "fairness.png",
        "learning_curves.png",
    }


def test_an_error_after_a_signal_in_the_last_evaluation_keeps_the_run(
    stages, tmp_path, monkeypatch, capfd
):
    def stop_and_fail(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        raise ValueError("the worker is gone")

    with monkeypatch.context() as patch:
        patch.setattr(runner.PeriodicEvaluation, "client_results", stop_and_fail)
        result = runner.run(make_spec(stages, tmp_path))
    assert result.stopped_by == signal.SIGTERM and result.rounds_done == 9
    assert "after the signal: the worker is gone" in capfd.readouterr().err
    assert runner.run(make_spec(stages, tmp_path)).summary["rounds"] == 9
