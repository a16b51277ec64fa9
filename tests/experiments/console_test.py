"""What a run prints around its numbers."""

import attrs
import pytest
import tensorflow as tf
from absl.testing import flagsaver

from tests.testing import tiny_task
from tff_algos import execution
from tff_algos.experiments import cli, console, declarations, launch
from tff_algos.experiments.catalog import get
from tff_algos.experiments.errors import RunError
from tff_algos.experiments.launch_options import Launch
from tff_algos.experiments.run_spec import RunResult


@pytest.fixture
def spec(tmp_path):
    settings = {"total_rounds": 0, "eval_clients": 2, "clients_per_round": 2}
    launched = Launch(output_dir=tmp_path / "run")
    return launch.build_spec(get("fedavg"), tiny_task.make(), settings, launched)


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        (0, "is evaluated on 2 clients."),
        (3, "is evaluated and personalized (epochs: 3) on 2 clients."),
    ],
)
def test_a_run_without_training_says_what_it_does(spec, epochs, expected):
    options = attrs.evolve(spec.options, personalization_epochs=epochs)
    notice = console._no_training_notice(attrs.evolve(spec, options=options))
    assert notice.startswith("--total_rounds=0: no training; the initial model ")
    assert notice.endswith(expected)


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        (
            4,
            "Stopped after round 4, which is saved; to resume, run the same command with ",
        ),
        (
            0,
            "Stopped before a round ended, so nothing is saved; to start again, run the",
        ),
    ],
)
def test_a_stopped_run_says_what_is_saved(spec, rounds, expected, capsys):
    result = RunResult(
        spec=spec, rows=[], weights=None, stopped_by=15, rounds_done=rounds
    )
    assert console._report(spec, result) == 143
    assert capsys.readouterr().err.startswith(expected)
    spaced = attrs.evolve(result, spec=attrs.evolve(spec, output_dir="my runs/a"))
    console._report(spaced.spec, spaced)
    assert capsys.readouterr().err.endswith("with --output_dir='my runs/a'\n")


def test_a_client_that_fails_is_an_error_of_one_line(monkeypatch):
    def run(*_):
        raise execution.ClientError(2, 5, "memory ran out")

    monkeypatch.setattr(console, "run", run)
    cli.define_flags()
    with flagsaver.flagsaver():
        cli.FLAGS.unparse_flags()
        cli.FLAGS(["main.py", "--algo=fedavg", "--task=mnist"])
        with pytest.raises(RunError, match=r"^Client 2 of 5: memory ran out$"):
            cli._run({})


@pytest.mark.parametrize(
    ("algo", "settings"),
    [("fedbn", {}), ("fedmlb", {}), ("moon", {}), ("moon", {"projection_head": True})],
)
def test_algorithms_that_need_blocks_say_which_model_has_none(algo, settings):
    with pytest.raises(
        RunError, match=rf"^{algo} cannot train the model of tiny: .*BlockModel"
    ):
        launch.build_spec(get(algo), tiny_task.make(), settings, Launch())


def test_a_file_of_declarations_that_is_out_of_date_is_named(tmp_path, monkeypatch):
    console.check_declarations()
    path = tmp_path / "declarations.json"
    path.write_text(declarations.FILE.read_text().replace("Rounds to train", "Rounds"))
    monkeypatch.setattr(declarations, "FILE", path)
    with pytest.raises(RunError, match="differs from what the code declares: write it"):
        console.check_declarations()


@pytest.mark.parametrize(
    ("clients", "environment", "expected"),
    [
        (4, {}, [1]),
        (3, {}, []),
        (None, {}, []),
        (4, {"TF_NUM_INTRAOP_THREADS": "2"}, []),
    ],
)
def test_an_op_takes_one_thread_where_clients_occupy_all_cpus(
    clients, environment, expected, monkeypatch
):
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(console.cpus, "count", lambda: 4)
    chosen = []
    monkeypatch.setattr(console.op_threads, "set_count", chosen.append)
    console._divide_cpus(clients)
    assert chosen == expected


def test_what_runs_already_keeps_its_threads(monkeypatch):
    tf.constant(0)  # TensorFlow runs from here on.
    before = console.op_threads.count()
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setattr(console.cpus, "count", lambda: before)
    console._divide_cpus(10)
    assert console.op_threads.count() == before
