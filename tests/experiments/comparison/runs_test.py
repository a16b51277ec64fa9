"""The runs of a comparison: done ones are kept, others run, failures are told."""

import pathlib
import signal
import threading
import time

import attrs
import pytest

from tests.testing.made_up_runs import write_run
from tests.testing.programs import Program
from tff_algos.experiments import declarations
from tff_algos.experiments.comparison import runs as runs_lib
from tff_algos.experiments.comparison.errors import ComparisonError
from tff_algos.experiments.comparison.rows import Row, make_rows
from tff_algos.experiments.comparison.runs import (
    execute_all,
    make_runs,
)
from tff_algos.hyperparameters import HyperparameterError

ROWS = [
    Row(label="uga rate=1", arguments=("--algo=uga", "--rate=1")),
    Row(label="fedavg", arguments=("--algo=fedavg",)),
]


def _nothing(run, results):
    del run, results


def test_runs_go_seed_by_seed_and_existing_ones_keep_their_folders(tmp_path):
    existing = Row(label="old", folders=(tmp_path / "a", tmp_path / "b"))
    runs = make_runs([*ROWS, existing], 2, tmp_path)
    assert [(run.row.label, run.folder.name) for run in runs] == [
        ("uga rate=1", "uga+rate=1+seed=0"),
        ("fedavg", "fedavg+seed=0"),
        ("uga rate=1", "uga+rate=1+seed=1"),
        ("fedavg", "fedavg+seed=1"),
        ("old", "a"),
        ("old", "b"),
    ]
    assert runs[2].arguments == ["--algo=uga", "--rate=1", "--seed=1"]
    assert [run.is_done for run in runs] == [False] * 4 + [True] * 2


def test_folders_of_long_names_can_be_made(tmp_path):
    labels = [f"fedavg features={'ä' * 300},{number}" for number in range(2)]
    rows = [Row(label=label, arguments=("--algo=fedavg",)) for label in labels]
    runs = make_runs(rows, 1, tmp_path)
    assert len({run.folder for run in runs}) == 2
    for run in runs:
        run.folder.mkdir()


def test_versions_of_an_algorithm_have_their_own_folders(tmp_path):
    runs = make_runs(ROWS, 1, tmp_path, versions={"uga": "1234abcd"})
    assert [run.folder.name for run in runs] == [
        "uga+rate=1-1234abcd+seed=0",
        "fedavg+seed=0",
    ]


def test_runs_that_are_done_are_not_run_again(tmp_path):
    runs = make_runs(ROWS, 2, tmp_path)
    first = Program()
    outcomes = execute_all(runs, 1, _nothing, first)
    assert len(first.calls) == 4
    # One that was stopped: it has no summary.
    (tmp_path / "fedavg+seed=1" / "summary.json").unlink()
    second = Program()
    again = execute_all(runs, 1, _nothing, second)
    assert second.calls == [["--algo=fedavg", "--seed=1"]]
    assert [r.rows for of in again.values() for r in of] == [
        r.rows for of in outcomes.values() for r in of
    ]


def test_runs_of_presets_keep_what_was_published_when_they_are_compared_again(tmp_path):
    plain = Row(label="fedavg", arguments=("--algo=fedavg",))
    preset = attrs.evolve(plain, published="63.34 (4.32)")
    execute_all(make_runs([preset], 1, tmp_path), 1, _nothing, Program())
    folder = tmp_path / "fedavg+seed=0"
    (again,) = make_rows([str(folder)], [], [], declarations.load())
    assert again.published == "63.34 (4.32)"
    # It is the run of the same flags still, whatever is published.
    for row in (preset, plain, attrs.evolve(plain, published="63.4")):
        (run,) = make_runs([row], 1, tmp_path)
        assert run.is_done
        runs_lib.check_folders([run])
    changed = attrs.evolve(preset, arguments=("--algo=fedprox",))
    with pytest.raises(ComparisonError, match=r"another run \(--algo=fedavg\)"):
        runs_lib.check_folders(make_runs([changed], 1, tmp_path))


def test_runs_with_other_flags_are_left_to_the_command_line(tmp_path):
    execute_all(make_runs(ROWS, 1, tmp_path), 1, _nothing, Program())
    changed = [Row(label="fedavg", arguments=("--algo=fedavg", "--total_rounds=9"))]
    program = Program()
    execute_all(make_runs(changed, 1, tmp_path), 1, _nothing, program)
    assert program.calls == [["--algo=fedavg", "--total_rounds=9", "--seed=0"]]


@pytest.mark.parametrize("jobs", [1, 4])
def test_results_are_by_row_whatever_the_jobs_and_failures_none(tmp_path, jobs):
    ended = []
    program = Program(failures=("fedavg+seed=1",))
    outcomes = execute_all(
        make_runs(ROWS, 2, tmp_path),
        jobs,
        lambda run, results: ended.append((run.folder.name, results is None)),
        program,
    )
    assert list(outcomes) == ROWS
    assert [each is None for of in outcomes.values() for each in of] == [
        False,
        False,
        False,
        True,
    ]
    assert sorted(ended) == [
        ("fedavg+seed=0", False),
        ("fedavg+seed=1", True),
        ("uga+rate=1+seed=0", False),
        ("uga+rate=1+seed=1", False),
    ]
    # Those that failed are tried again, the others are not.
    again = Program()
    execute_all(make_runs(ROWS, 2, tmp_path), jobs, _nothing, again)
    assert again.calls == [["--algo=fedavg", "--seed=1"]]


def test_existing_runs_are_read(tmp_path):
    write_run(tmp_path, curve=(0.25,))
    program = Program()
    row = Row(label="old", folders=(tmp_path,))
    outcomes = execute_all(make_runs([row], 3, tmp_path), 1, _nothing, program)
    assert program.calls == []
    (results,) = outcomes[row]
    assert results.rows[-1]["eval/accuracy"] == 0.25


def test_a_failure_is_told_with_the_end_of_its_log(tmp_path, capsys):
    (run, *_) = make_runs(ROWS, 1, tmp_path)
    assert runs_lib.execute(run, Program(failures=("uga",))) is None
    runs_lib.tell_failure(run)
    first, *told = capsys.readouterr().err.splitlines()
    assert first.startswith("uga rate=1, seed 0: failed, ")
    assert told == [f"    line {n}" for n in range(12, 20)] + [
        "    round 2",
        "    error: broken",
    ]


class _EndlessAfterOne(Program):
    """Its second run lasts until it is stopped."""

    def __init__(self):
        super().__init__()
        self._stop = threading.Event()

    def __call__(self, arguments, log):
        if not self.calls:
            return super().__call__(arguments, log)
        assert self._stop.wait(30)
        return 143

    def stop(self):
        self._stop.set()


def test_an_error_when_a_run_has_ended_stops_the_others(tmp_path):
    def ended(run, results):
        raise ValueError("ours")

    program = _EndlessAfterOne()
    with pytest.raises(ValueError, match="ours"):
        execute_all(make_runs(ROWS, 2, tmp_path), 1, ended, program)
    assert len(program.calls) == 1


class _FinishingItsRound(Program):
    """The user stops while its run goes on, and again while that finishes its round."""

    def __init__(self):
        super().__init__()
        self.num_stops = 0
        self._stopped_twice = threading.Event()

    def __call__(self, arguments, log):
        self.calls.append(arguments)
        time.sleep(0.2)  # A user presses it when the others are in the queue.
        _press_ctrl_c()
        assert self._stopped_twice.wait(30)
        return 143

    def stop(self):
        self.num_stops += 1
        if self.num_stops == 1:
            threading.Timer(0.2, _press_ctrl_c).start()
        else:
            self._stopped_twice.set()


def _press_ctrl_c():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def test_a_signal_lets_runs_finish_their_rounds_and_a_second_one_ends_them(tmp_path):
    program, told = _FinishingItsRound(), []
    with pytest.raises(KeyboardInterrupt):
        execute_all(
            make_runs(ROWS, 2, tmp_path),
            1,
            _nothing,
            program,
            lambda: told.append(program.num_stops),
        )
    # It is told at once: when the calls were asked to stop, before they have ended.
    assert told == [1] and program.num_stops == 2
    assert len(program.calls) == 1


def test_folders_of_complete_runs_with_other_flags_are_refused_before_any_run(tmp_path):
    runs = make_runs(ROWS, 1, tmp_path)
    execute_all(runs, 1, _nothing, Program())
    runs_lib.check_folders(runs)
    changed = [Row(label="fedavg", arguments=("--algo=fedavg", "--total_rounds=9"))]
    with pytest.raises(ComparisonError, match="seed=0 holds another run"):
        runs_lib.check_folders(make_runs(changed, 1, tmp_path))


def test_a_run_on_a_file_that_has_changed_is_not_done(tmp_path):
    file = tmp_path / "data.csv"
    file.write_text("a,label\n1,0\n")
    rows = [Row(label="fedavg", arguments=("--algo=fedavg", f"--task=csv:{file}"))]
    runs = make_runs(rows, 1, tmp_path)
    execute_all(runs, 1, _nothing, Program())
    assert make_runs(rows, 1, tmp_path)[0].is_done
    file.write_text("a,label\n1,0\n2,1\n")
    now = make_runs(rows, 1, tmp_path)
    assert not now[0].is_done
    with pytest.raises(ComparisonError, match=r"holds another run \(its data\)"):
        runs_lib.check_folders(now)


def test_a_run_from_a_model_that_has_changed_is_not_done(tmp_path):
    weights = tmp_path / "base" / "model" / "weights.npz"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"1")
    flags = ("--algo=fedavg", f"--initial_model={tmp_path}/base")
    rows = [Row(label="fedavg", arguments=flags), ROWS[0]]
    execute_all(make_runs(rows, 1, tmp_path), 1, _nothing, Program())
    assert all(run.is_done for run in make_runs(rows, 1, tmp_path))
    weights.write_bytes(b"2")
    now = make_runs(rows, 1, tmp_path)
    assert [run.is_done for run in now] == [False, True]
    with pytest.raises(ComparisonError, match=r"another run \(its initial model\)"):
        runs_lib.check_folders(now)
    weights.unlink()
    with pytest.raises(HyperparameterError, match="initial_model=.*holds no model"):
        make_runs(rows, 1, tmp_path)


def test_seeds_on_another_dataset_than_those_that_are_done_are_refused(tmp_path):
    execute_all(make_runs(ROWS, 1, tmp_path), 1, _nothing, Program())
    runs = make_runs(ROWS, 2, tmp_path)
    name = runs_lib.read_results(runs[0].folder).dataset
    runs_lib.check_datasets(runs, {})
    runs_lib.check_datasets(runs, dict.fromkeys(ROWS, name))
    # Another row of the same task, which is new.
    new = Row(label="reptile", arguments=("--algo=reptile",))
    with pytest.raises(ComparisonError, match=f"seed=0 holds a run on {name}, but fur"):
        runs_lib.check_datasets(runs, {new: "real"})
    other = Row(label="reptile", arguments=("--algo=reptile", "--task=other"))
    runs_lib.check_datasets(runs, {other: "real"})


def test_images_are_compared_by_the_files_that_are_read(tmp_path):
    def version():
        row = Row(label="fedavg", arguments=(f"--task=folder:{tmp_path}/photos",))
        return make_runs([row], 1, tmp_path)[0].data_version

    linked = tmp_path / "elsewhere" / "cats"
    linked.mkdir(parents=True)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "anna").symlink_to(tmp_path / "elsewhere")
    (linked / "1.png").write_bytes(b"1")
    before = version()
    # Such as an editor's lock, and what file managers leave.
    (tmp_path / "photos" / ".#1.png").symlink_to("nothing")
    (tmp_path / "photos" / ".DS_Store").touch()
    assert version() == before
    (linked / "2.png").write_bytes(b"2")
    assert version() != before
    (linked / "3.png").symlink_to("nothing")
    with pytest.raises(ComparisonError, match=r"3.png is a link to nothing: move it"):
        version()


def test_own_data_that_cannot_be_read_are_an_error_of_one_line(tmp_path, monkeypatch):
    path = tmp_path / "d.csv"
    path.touch()

    def refuse(_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(pathlib.Path, "read_bytes", refuse)
    row = Row(label="fedavg", arguments=(f"--task=csv:{path}",))
    with pytest.raises(ComparisonError, match=r"d.csv cannot be read: Permission den"):
        make_runs([row], 1, tmp_path)


def test_own_data_in_the_home_folder_are_compared_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    row = Row(label="fedavg", arguments=("--task=csv:~/d.csv",))
    versions = []
    for text in ("a", "b"):
        (tmp_path / "d.csv").write_text(text)
        versions.append(make_runs([row], 1, tmp_path)[0].data_version)
    assert versions[0] != versions[1] and "" not in versions
