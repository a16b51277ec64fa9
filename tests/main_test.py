"""main.py as a program: signals, kills, full disks, and what they leave behind."""

import json
import random
import resource
import signal
import time

import psutil
import pytest

from tests.testing.command_line import run_program, start
from tff_algos.experiments.metrics_log import read_rows

COMMAND = (
    "--algo=personalized_fedavg",
    "--task=emnist",
    "--only_digits",
    "--model=2nn",
    "--data=generated",
    "--pretrain_rounds=4",
    "--finetune_rounds=4",
    "--clients_per_round=2",
    "--client_epochs_per_round=1",
    "--rounds_per_eval=3",
    "--rounds_per_checkpoint=2",
    "--eval_clients=3",
    "--personalization_epochs=1",
)


def numbers(directory):
    rows = read_rows(directory / "metrics.csv")
    for row in rows:
        row.pop("seconds")
    people = json.loads((directory / "summary.json").read_text())["personalization"]
    return rows, people, (directory / "per_client.csv").read_text()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("uninterrupted")
    finished = run_program(*COMMAND, f"--output_dir={directory}")
    assert finished.status == 0, finished.err
    return directory


def wait_for(condition, seconds=90.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def rounds_written(directory):
    path = directory / "metrics.csv"
    return len(path.read_text().splitlines()) - 1 if path.exists() else 0


def children_of(process):
    return psutil.Process(process.pid).children(recursive=True)


def gone(children, seconds=10.0):
    _, alive = psutil.wait_procs(children, timeout=seconds)
    return not alive


def test_a_run_shows_progress_and_ends_with_a_table(uninterrupted):
    finished = run_program(*COMMAND, f"--output_dir={uninterrupted}")
    assert finished.status == 0
    assert "Personalized FedAvg on emnist_generated" in finished.out
    assert str(uninterrupted) in finished.out
    # Nothing of TensorFlow's or TFF's own logs: the notices and the progress only.
    title = "Personalized FedAvg on emnist_generated: all "
    shown = ("loading TensorFlow", "Results: ", title, "personalization: client")
    for line in finished.err.splitlines():
        assert line.startswith(shown), line


def test_sigkill_at_any_moment_loses_nothing_that_was_saved(uninterrupted, tmp_path):
    killed = 0
    seed = random.randrange(1 << 30)
    generator = random.Random(seed)
    for after_round in sorted(generator.sample(range(1, 8), 2)):
        process = start(*COMMAND, f"--output_dir={tmp_path}")
        wait_for(
            lambda p=process, n=after_round: (
                rounds_written(tmp_path) >= n or p.poll() is not None
            )
        )
        time.sleep(generator.uniform(0, 0.3))
        children = children_of(process) if process.poll() is None else []
        process.kill()
        process.communicate(timeout=30)
        killed += process.returncode == -signal.SIGKILL
        assert gone(children), f"seed {seed}: the worker outlived its parent"
    assert killed, f"seed {seed}: the runs ended before they could be killed"
    finished = run_program(*COMMAND, f"--output_dir={tmp_path}")
    assert finished.status == 0, f"seed {seed}: {finished.err}"
    assert numbers(tmp_path) == numbers(uninterrupted), f"seed {seed}"


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_says_so_and_exits_with_its_status(
    uninterrupted, tmp_path, number, status
):
    process = start(*COMMAND, f"--output_dir={tmp_path}")
    wait_for(lambda: rounds_written(tmp_path) >= 3)
    children = children_of(process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status
    assert gone(children)
    done = rounds_written(tmp_path)
    assert 3 <= done < 8
    assert "Personalized FedAvg on emnist_generated: 4 rounds of fedavg, 2 of " in err
    assert f"stopping after round {done}" in err
    assert (
        "; press Ctrl-C again, or send another signal, to stop now: the last saved round is 2."
        in err
    )
    assert f"Stopped after round {done}, which is saved" in err
    assert (tmp_path / "checkpoints" / f"round_{done}").is_dir()
    finished = run_program(*COMMAND, f"--output_dir={tmp_path}")
    assert finished.status == 0, finished.err
    assert numbers(tmp_path) == numbers(uninterrupted)


@pytest.mark.parametrize("loaded", ["site-packages/numpy", "libtensorflow_framework"])
def test_an_interrupt_while_tensorflow_is_imported_ends_in_silence(loaded, tmp_path):
    process = start(*COMMAND, f"--output_dir={tmp_path}")
    wait_for(
        lambda: any(
            loaded in file.path for file in psutil.Process(process.pid).memory_maps()
        )
    )
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err in ("", "loading TensorFlow and the task\n")


def test_a_full_disk_is_one_line_and_what_was_saved_is_whole(uninterrupted, tmp_path):
    def little_room():
        # Files of 100 kB at most: rows fit, the checkpoint of an 800 kB model does
        # not.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    finished = run_program(*COMMAND, f"--output_dir={tmp_path}", preexec_fn=little_room)
    assert finished.status == 2, finished.err
    errors = [line for line in finished.err.splitlines() if "error" in line.lower()]
    assert len(errors) == 1
    assert errors[0].startswith(f"error: --output_dir={tmp_path} cannot be written: ")
    assert "Traceback" not in finished.err
    finished = run_program(*COMMAND, f"--output_dir={tmp_path}")
    assert finished.status == 0, finished.err
    assert numbers(tmp_path) == numbers(uninterrupted)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "run"
    finished = run_program(*COMMAND, f"--output_dir={target}")
    assert finished.status == 2
    assert f"error: --output_dir={target} cannot be written: " in finished.err
    assert "Traceback" not in finished.err
