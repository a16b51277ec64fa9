"""Results folders that were edited or half written: mended, or refused in one line."""

import contextlib
import errno
import fcntl
import os
import shutil
import signal

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import tiny_task
from tff_algos.clients.batching import BatchSpec
from tff_algos.experiments import (
    checkpoints,
    files,
    metrics_log,
    results_folder,
    run_spec,
    runner,
)
from tff_algos.experiments.errors import FolderInUseError, OutputError, ResumeError
from tff_algos.experiments.metrics_log import read_rows
from tff_algos.experiments.stage import Stage

SGD = tff.learning.optimizers.build_sgdm
TASK = tiny_task.make()


def test_below_a_broken_link_no_folder_is_looked_for_for_ever(tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path / "nowhere")
    wanted = tmp_path / "runs" / "one"
    assert results_folder.create_new(wanted) == wanted
    with pytest.raises(OSError), results_folder.opened(wanted):
        pass


def test_a_file_is_no_results_folder(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("")
    with (
        pytest.raises(
            OutputError, match="--output_dir=.*out.txt is a file, expected a"
        ),
        results_folder.opened(path),
    ):
        pass


@pytest.fixture(scope="module")
def make_spec():
    process = tff_algos.build_fed_avg(TASK.model, SGD(0.5))

    def make(directory, rounds=2):
        stage = Stage(
            name="fedavg",
            process=process,
            num_rounds=rounds,
            clients_per_round=2,
            batches=BatchSpec(batch_size=4, num_epochs=1),
        )
        return run_spec.RunSpec(
            title="a test",
            stages=(stage,),
            task=TASK,
            output_dir=directory,
            hyperparameters={"algo": "test", "total_rounds": rounds},
            personalization_optimizer=SGD(0.5),
            options=run_spec.RunOptions(
                rounds_per_eval=0, eval_clients=1, personalization_epochs=0
            ),
        )

    return make


@pytest.fixture(scope="module")
def finished(make_spec, tmp_path_factory):
    directory = tmp_path_factory.mktemp("finished")
    runner.run(make_spec(directory))
    return directory


@pytest.fixture
def folder(finished, tmp_path):
    """A folder of two rounds, to be spoilt."""
    return shutil.copytree(finished, tmp_path / "run")


def _lines(text):
    return [line.split(",") for line in text.splitlines()]


def _without_column(name):
    def edit(lines):
        index = lines[0].index(name)
        return [line[:index] + line[index + 1 :] for line in lines]

    return edit


def _with_cell(row, name, text):
    def edit(lines):
        line = list(lines[row])
        line[lines[0].index(name)] = text
        return [*lines[:row], line, *lines[row + 1 :]]

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda x: [x[0], [*x[1], "1"], x[2]],
            r"line 2 has \d+ values for \d+ columns",
        ),
        (lambda x: [x[0], x[1], x[2][:3]], r"line 3 has 3 values for \d+ columns"),
        (_without_column("round"), "line 1 must name each column once, 'round' among"),
        (_with_cell(0, "stage", "round"), "line 1 must name each column once"),
        (lambda x: [], "line 1 must name each column once"),
        (_without_column("seconds"), r"line 2 \(round 1\) has no number .* 'seconds'"),
        (_with_cell(2, "seconds", "a while"), r"line 3 \(round 2\) has no number"),
        (_with_cell(1, "seconds", ""), r"line 2 \(round 1\) has no number"),
        (_with_cell(2, "round", "two"), "line 3 has no whole number .* 'round'"),
        (_with_cell(1, "round", "0"), "line 2 has no whole number above 0"),
        (_with_cell(1, "round", "1.0"), "line 2 has no whole number above 0"),
        (lambda x: [*x, x[2]], "line 4 is of round 2, after that of round 2"),
        (lambda x: [x[0], x[2], x[1]], "line 3 is of round 1, after that of round 2"),
    ],
)
def test_an_edited_metrics_file_is_refused_by_the_line(
    folder, make_spec, edit, message
):
    path = folder / "metrics.csv"
    lines = [",".join(line) for line in edit(_lines(path.read_text()))]
    path.write_text("\n".join([*lines, ""]))
    remedy = "Repair it, or move it away to continue without its rows.$"
    with pytest.raises(
        ResumeError, match=rf"^{path} cannot be read: {message}.*\. {remedy}"
    ):
        runner.run(make_spec(folder))
    assert path.read_text() == "\n".join([*lines, ""])


def test_a_metrics_file_that_is_no_text_is_refused(folder, make_spec):
    (folder / "metrics.csv").write_bytes(b"\xff\xfe\x00" * 9)
    with pytest.raises(ResumeError, match=r"metrics.csv cannot be read: 'utf-8' codec"):
        runner.run(make_spec(folder))


def test_a_row_beyond_the_last_round_is_refused(folder, make_spec):
    path = folder / "metrics.csv"
    path.write_text(path.read_text().replace("\n2,", "\n7,"))
    with pytest.raises(ResumeError, match=r"a row of round 7, beyond --total_rounds=2"):
        runner.run(make_spec(folder))


def test_a_deleted_metrics_file_is_told_and_the_later_rows_are_kept(
    folder, make_spec, capfd
):
    (folder / "metrics.csv").unlink()
    result = runner.run(make_spec(folder, rounds=3))
    told = [line for line in capfd.readouterr().err.splitlines() if "warning" in line]
    (line,) = told
    assert line == (
        f"warning: {folder}/metrics.csv has no row of rounds 1-2, done before and not "
        "run again: it begins with round 3."
    )
    assert [row["round"] for row in read_rows(folder / "metrics.csv")] == [3]
    assert result.summary["rounds"] == result.rounds_done == 3


def test_a_run_without_checkpoints_says_that_it_starts_again(folder, make_spec, capfd):
    shutil.rmtree(folder / "checkpoints")
    runner.run(make_spec(folder))
    told = [line for line in capfd.readouterr().err.splitlines() if "warning" in line]
    (line,) = told
    assert line == (
        f"warning: {folder}/metrics.csv ends with round 2, but there is no checkpoint: "
        "rounds 1-2 run again."
    )
    assert [row["round"] for row in read_rows(folder / "metrics.csv")] == [1, 2]


def test_the_model_of_a_checkpoint_is_written_if_a_killed_run_did_not(
    folder, make_spec
):
    path = folder / "model" / "round_2.npz"
    expected = dict(np.load(path))
    path.unlink()
    runner.run(make_spec(folder, rounds=3))
    found = dict(np.load(path))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


def _make(path, kind):
    """Puts something else in the place of a path."""
    files.remove(path)
    if kind == "a file":
        path.write_text("of the user")
    elif kind == "a folder":
        path.mkdir()
        (path / "note").write_text("of the user")
    else:
        path.symlink_to(path.parent / "gone")


@pytest.mark.parametrize("kind", ["a folder", "a symbolic link to nothing"])
@pytest.mark.parametrize(
    "name",
    ["client_memory.rows", "config.json", "metrics.csv", "run.lock"],
)
def test_what_is_no_file_is_refused_where_one_belongs(folder, make_spec, name, kind):
    _make(folder / name, kind)
    with pytest.raises(
        OutputError, match=rf"^{folder}/{name} is {kind} where a file belongs: move it"
    ):
        runner.run(make_spec(folder))
    assert not (folder / name).is_file()


@pytest.mark.parametrize("kind", ["a file", "a symbolic link to nothing"])
@pytest.mark.parametrize("name", ["checkpoints", "plots", "tensorboard"])
def test_what_is_no_folder_is_refused_where_one_belongs(folder, make_spec, name, kind):
    _make(folder / name, kind)
    with pytest.raises(
        OutputError, match=rf"^{folder}/{name} is {kind} where a folder belongs: move"
    ):
        runner.run(make_spec(folder))
    assert not (folder / name).is_dir()


@pytest.mark.parametrize("kind", ["a file", "a folder", "a symbolic link to nothing"])
def test_interrupted_writes_are_removed_whatever_they_are(folder, kind):
    whole = sorted(folder.rglob("*"))
    _make(folder / ".config.json.ab_12xyz", kind)
    for name in ("weights.npz", "round_12.npz", "saved_model", "encoding.json"):
        _make(folder / "model" / f".{name}.0123abcd", kind)
    with results_folder.opened(folder):
        pass
    _make(folder / "metrics.csv_temp1234", kind)
    metrics_log.MetricsLog(folder)
    _make(folder / "checkpoints" / "round_2_temp1234", kind)
    assert checkpoints.Checkpoints(folder / "checkpoints").rounds() == [2]
    # A log of TensorBoard's is made whenever it is opened.
    found = {path for path in folder.rglob("*") if path.parent.name != "tensorboard"}
    assert found == {path for path in whole if path.parent.name != "tensorboard"}


def test_hidden_files_of_others_stay(folder, make_spec):
    (folder / "model" / ".git").mkdir(parents=True, exist_ok=True)
    for name in (".env", ".git/config", ".weights.npz", ".weights.npz.backup99"):
        (folder / "model" / name).write_text("mine")
    runner.run(make_spec(folder))
    assert (folder / "model" / ".git" / "config").read_text() == "mine"
    for name in (".env", ".weights.npz", ".weights.npz.backup99"):
        assert (folder / "model" / name).read_text() == "mine"


def test_a_failed_write_names_the_file(folder, make_spec):
    plot = folder / "plots" / "learning_curves.png"
    plot.unlink()
    plot.mkdir()
    with pytest.raises(
        OutputError, match=rf"cannot be written: {plot}: Is a directory"
    ):
        runner.run(make_spec(folder))


@pytest.mark.parametrize("held", ["[]", '{"hyperparameters": [1]}', "\x80"])
def test_a_configuration_of_something_else_is_refused(folder, make_spec, held):
    (folder / "config.json").write_bytes(held.encode("latin-1"))
    with pytest.raises(ResumeError, match=r"config.json is not the configuration of"):
        runner.run(make_spec(folder))


@pytest.mark.parametrize("left", ["metrics.csv", "checkpoints"])
def test_results_without_a_configuration_are_not_overwritten(folder, make_spec, left):
    for path in list(folder.iterdir()):
        if path.name != left:
            files.remove(path)
    with pytest.raises(ResumeError, match=rf"holds {left} but no config.json: put"):
        runner.run(make_spec(folder))
    assert [path.name for path in folder.iterdir()] == [left]


def test_a_configuration_without_rounds_is_of_another_run(folder, make_spec):
    config = '{"hyperparameters": {"algo": "test"}}'
    (folder / "config.json").write_text(config)
    with pytest.raises(ResumeError, match="--total_rounds: was None, now 2"):
        runner.run(make_spec(folder))


@contextlib.contextmanager
def _other_process_in(folder):
    """A process that holds the folder until it is killed; yields its id."""
    ready, tell = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            with results_folder.opened(folder):
                os.write(tell, b"held")
                signal.pause()
        finally:
            os._exit(1)  # Never on with the tests.
    os.close(tell)
    try:
        with open(ready, "rb") as pipe:
            assert pipe.read(4) == b"held"
        yield process
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def test_a_second_run_is_refused_and_told_who_runs(folder, make_spec):
    rows = (folder / "metrics.csv").read_bytes()
    with _other_process_in(folder) as process:
        in_use = (
            rf"^--output_dir={folder} is in use by process {process}, started "
            r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d: wait until it ends, or choose another "
            r"--output_dir\.$"
        )
        for _ in range(2):
            with pytest.raises(FolderInUseError, match=in_use):
                runner.run(make_spec(folder, rounds=3))
        assert (folder / "metrics.csv").read_bytes() == rows


def test_the_lock_file_of_a_killed_run_is_no_obstacle(folder, make_spec):
    with _other_process_in(folder):
        pass
    assert (folder / "run.lock").read_text().startswith("process ")
    assert runner.run(make_spec(folder)).rounds_done == 2
    assert not (folder / "run.lock").exists()


def test_a_run_that_fails_releases_the_folder(folder):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), results_folder.opened(folder):
            assert (folder / "run.lock").exists()
            raise ZeroDivisionError
    assert not (folder / "run.lock").exists()


def test_a_lock_file_that_its_holder_removes_is_made_anew(folder, monkeypatch):
    flock = fcntl.flock

    def remove_first(descriptor, operation):
        flock(descriptor, operation)
        (folder / "run.lock").unlink()
        monkeypatch.setattr(fcntl, "flock", flock)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    in_use = pytest.raises(FolderInUseError, match=f"process {os.getpid()},")
    with results_folder.opened(folder), in_use, results_folder.opened(folder):
        pass


def test_a_file_system_without_locks_is_told(folder, monkeypatch, capsys):
    def unsupported(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with results_folder.opened(folder):
        assert capsys.readouterr().err == (
            f"warning: {folder} cannot be locked (No locks available): start no second "
            "run in it.\n"
        )


def test_a_lock_that_cannot_be_made_is_a_folder_that_cannot_be_written(
    folder, make_spec, monkeypatch
):
    def full(path, *args):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(results_folder.os, "open", full)
    with pytest.raises(
        OutputError, match=rf"={folder} cannot be written: .*run.lock: No space left"
    ):
        runner.run(make_spec(folder))
