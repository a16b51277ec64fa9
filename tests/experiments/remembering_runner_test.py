"""Runs whose clients or server remember: gone on with, rejected rows, dropped clients."""

import functools
import os
import shutil
import signal

import attrs
import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import tiny_task
from tests.testing.speed import some_fast
from tff_algos.clients.batching import BatchSpec
from tff_algos.experiments import catalog, cohorts, run_spec, runner
from tff_algos.experiments.errors import ResumeError
from tff_algos.experiments.metrics_log import read_rows
from tff_algos.experiments.stage import Stage
from tff_algos.hyperparameters import HyperparameterError

SGD = tff.learning.optimizers.build_sgdm
TASK = tiny_task.make()
N = len(TASK.train_client_ids)
ROUNDS = 7
REMEMBERING_CLIENTS = ("scaffold", "feddyn", "gradma", "ditto")

BUILDERS = {
    "scaffold": lambda m: tff_algos.build_scaffold(
        m, client_learning_rate=0.5, num_clients=N
    ),
    "feddyn": lambda m: tff_algos.build_fed_dyn(
        m, SGD(0.5), dynamic_regularization=0.1, num_clients=N
    ),
    "mifam": lambda m: tff_algos.build_mifa_m(
        m, SGD(0.5), num_clients=N, server_momentum=0.5
    ),
    "gradma_s": lambda m: tff_algos.build_gradma_s(
        m, SGD(0.5), num_clients=N, memory_size=3
    ),
    "gradma": lambda m: tff_algos.build_gradma(
        m, SGD(0.5), num_clients=N, persist_previous=True
    ),
    "ditto": lambda m: tff_algos.build_ditto(m, SGD(0.5), personal_strength=0.1),
}
# One with vectors that all clients share, one with rows at clients and at the server.
FAST = ("scaffold", "gradma")


class Interrupted(Exception):
    """Stands for whatever ends a program."""


class _DiesInRound:
    """`next` of a learning process that fails in one of its rounds."""

    def __init__(self, computation, round_num):
        self.type_signature = computation.type_signature
        self._computation, self._left = computation, round_num

    def __call__(self, state, data):
        self._left -= 1
        if not self._left:
            raise Interrupted
        return self._computation(state, data)


class DyingProcess:
    """A learning process that fails in one of its rounds."""

    def __init__(self, process, round_num):
        self._process = process
        self.next = _DiesInRound(process.next, round_num)

    def __getattr__(self, name):
        return getattr(self._process, name)


@functools.cache
def process(name):
    return BUILDERS[name](TASK.model)


def make_spec(name, directory, dies_in_round=None, **options):
    whole = process(name)
    stage = Stage(
        name=name,
        process=whole if dies_in_round is None else DyingProcess(whole, dies_in_round),
        num_rounds=ROUNDS,
        clients_per_round=3,
        batches=BatchSpec(batch_size=4, num_epochs=2),
    )
    options = {
        "rounds_per_eval": 3,
        "rounds_per_checkpoint": 2,
        "eval_clients": 0,
        "personalization_epochs": 0,
    } | options
    return run_spec.RunSpec(
        title="a test",
        stages=(stage,),
        task=TASK,
        output_dir=directory,
        hyperparameters={"algo": name},
        personalization_optimizer=SGD(0.5),
        options=run_spec.RunOptions(**options),
    )


@functools.cache
def uninterrupted(name, directory):
    runner.run(make_spec(name, directory))
    return numbers(directory)


def numbers(directory):
    """All that must not depend on when a run was stopped."""
    rows = read_rows(directory / "metrics.csv")
    for row in rows:
        row.pop("seconds")
    return rows, (directory / "per_client.csv").read_text()


@pytest.mark.parametrize(
    "name",
    some_fast(BUILDERS, FAST),
)
def test_what_is_remembered_survives_the_death_of_the_program(name, tmp_path):
    expected = uninterrupted(name, tmp_path / "whole")
    # Rounds 4 and 6 end with checkpoints: one death between them, one right behind.
    for dies_in_round in (6, 2):
        with pytest.raises(Interrupted):
            runner.run(make_spec(name, tmp_path / "broken", dies_in_round))
    runner.run(make_spec(name, tmp_path / "broken"))
    assert numbers(tmp_path / "broken") == expected


def test_a_round_whose_evaluation_fails_after_a_signal_runs_again(
    tmp_path, monkeypatch
):
    """Its clients' rows are written then, which a checkpoint must not have."""
    expected = uninterrupted("scaffold", tmp_path / "whole")
    metrics = runner.PeriodicEvaluation.metrics

    def fail_after_round_5(self, round_num, weights):
        if round_num == 5:
            os.kill(os.getpid(), signal.SIGTERM)
            raise ValueError("the worker is gone")
        return metrics(self, round_num, weights)

    monkeypatch.setattr(runner.PeriodicEvaluation, "metrics", fail_after_round_5)
    result = runner.run(make_spec("scaffold", tmp_path / "broken"))
    assert result.stopped_by == signal.SIGTERM and result.rounds_done == 4
    monkeypatch.setattr(runner.PeriodicEvaluation, "metrics", metrics)
    runner.run(make_spec("scaffold", tmp_path / "broken"))
    assert numbers(tmp_path / "broken") == expected


@pytest.mark.parametrize("name", REMEMBERING_CLIENTS)
def test_clients_rows_are_in_the_results_folder(name, tmp_path):
    runner.run(make_spec(name, tmp_path))
    assert (tmp_path / "client_memory.rows").stat().st_size > 0
    assert not any("memory/" in key for row in numbers(tmp_path)[0] for key in row)


def test_a_damaged_row_is_an_error_and_not_a_number(tmp_path):
    with pytest.raises(Interrupted):
        runner.run(make_spec("scaffold", tmp_path, dies_in_round=4))
    file = tmp_path / "client_memory.rows"
    content = bytearray(file.read_bytes())
    file.write_bytes(bytes(byte ^ 0xFF for byte in content))
    with pytest.raises(ResumeError, match=r"client_memory\.rows is damaged"):
        runner.run(make_spec("scaffold", tmp_path))


def test_an_earlier_checkpoint_has_its_own_rows(tmp_path):
    expected = uninterrupted("scaffold", tmp_path / "whole")
    with pytest.raises(Interrupted):
        runner.run(make_spec("scaffold", tmp_path / "broken", dies_in_round=6))
    # The newest checkpoint, of round 4, is lost; rows of rounds 3 to 5 were written.
    shutil.rmtree(tmp_path / "broken" / "checkpoints" / "round_4")
    runner.run(make_spec("scaffold", tmp_path / "broken"))
    assert numbers(tmp_path / "broken") == expected


def test_a_broken_earlier_checkpoint_does_not_stop_the_newest(tmp_path):
    expected = uninterrupted("scaffold", tmp_path / "whole")
    with pytest.raises(Interrupted):
        runner.run(make_spec("scaffold", tmp_path / "broken", dies_in_round=6))
    broken = tmp_path / "broken" / "checkpoints" / "round_2"
    for part in broken.rglob("*"):
        if part.is_file():
            part.write_bytes(b"")
    runner.run(make_spec("scaffold", tmp_path / "broken"))
    assert numbers(tmp_path / "broken") == expected


def cohort_sizes(dropout, num_rounds=400):
    stage = make_spec("mifam", "unused").stages[0]
    stage = attrs.evolve(stage, clients_per_round=6)
    return [
        len(cohorts.cohort_ids(stage, TASK, 0, number, dropout=dropout))
        for number in range(1, num_rounds + 1)
    ]


def test_clients_drop_out_at_the_rate_each_for_itself():
    assert set(cohort_sizes(0.0)) == {6}
    sizes = np.array(cohort_sizes(0.3))
    # Binomial: mean 4.2, standard deviation 1.12; of the mean of 400 it is 0.056.
    assert sizes.mean() == pytest.approx(6 * 0.7, abs=0.2)
    assert sizes.std() == pytest.approx(np.sqrt(6 * 0.7 * 0.3), abs=0.15)


def test_who_drops_out_is_a_function_of_seed_and_round():
    stage = make_spec("mifam", "unused").stages[0]
    whole = [cohorts.cohort_ids(stage, TASK, 0, n) for n in range(1, 30)]
    kept = [cohorts.cohort_ids(stage, TASK, 0, n, dropout=0.5) for n in range(1, 30)]
    again = [cohorts.cohort_ids(stage, TASK, 0, n, dropout=0.5) for n in range(1, 30)]
    assert kept == again
    for sampled, left in zip(whole, kept, strict=True):
        assert [client for client in sampled if client in left] == left


@pytest.mark.parametrize("name", some_fast(BUILDERS, FAST))
def test_rounds_that_nobody_is_left_in_are_rejected_and_counted(name, tmp_path):
    runner.run(make_spec(name, tmp_path, client_dropout=0.8))
    stage = make_spec(name, "unused").stages[0]
    left = [
        len(cohorts.cohort_ids(stage, TASK, 0, number, dropout=0.8))
        for number in range(1, ROUNDS + 1)
    ]
    assert 0 in left and max(left) > 0
    rows, _ = numbers(tmp_path)
    assert [row["num_rejected_rounds"] for row in rows] == [int(n == 0) for n in left]
    assert all(np.isfinite(row["eval/loss"]) for row in rows if "eval/loss" in row)


def test_dropping_out_of_pooled_data_is_refused(tmp_path):
    spec = make_spec("mifam", tmp_path)
    pooled = (attrs.evolve(spec.stages[0], clients_per_round=None),)
    options = attrs.evolve(spec.options, client_dropout=0.5)
    with pytest.raises(HyperparameterError, match="client_dropout=0.5 is not valid"):
        attrs.evolve(spec, stages=pooled, options=options)


def test_feddyn_adapts_to_the_mean_of_what_clients_process(tmp_path):
    recipe = catalog.get("feddyn")
    chosen = {
        "adaptive_regularization": True,
        "dynamic_regularization": 0.5,
        "total_rounds": 2,
        "clients_per_round": 3,
        "client_epochs_per_round": 2,
    }
    settings = recipe.resolve(TASK.name, {}, chosen)
    (stage,) = recipe.stages(TASK, settings)
    sizes = [len(TASK.examples(name, "train")[0]) for name in TASK.train_client_ids]
    assert len(set(sizes)) > 1
    build = functools.partial(
        tff_algos.build_fed_dyn,
        TASK.model,
        SGD(settings["client_learning_rate"]),
        dynamic_regularization=0.5,
        num_clients=N,
    )

    def run(name, process):
        spec = make_spec("feddyn", tmp_path / name)
        runner.run(attrs.evolve(spec, stages=(attrs.evolve(stage, process=process),)))
        return numbers(tmp_path / name)

    by_flag = run("flag", stage.process)
    assert by_flag == run("mean", build(mean_examples=2 * np.mean(sizes)))
    assert by_flag != run("fixed", build())
