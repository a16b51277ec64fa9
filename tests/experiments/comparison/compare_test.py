"""A comparison as a function."""

import re

import pytest

from tests.testing import programs
from tff_algos.experiments import compare as compare_runs
from tff_algos.experiments import results_folder
from tff_algos.experiments.errors import FolderInUseError, RunError


@pytest.fixture
def program(monkeypatch):
    return programs.stand_in(monkeypatch)


def test_a_function_runs_all_rows_and_seeds_and_reports(program, tmp_path):
    found = compare_runs(
        "fedavg",
        "fedprox",
        task="mnist",
        seeds=2,
        grid={"proximal_strength": [0.1, 1]},
        columns=["last:eval/accuracy"],
        output_dir=tmp_path,
        total_rounds=3,
    )
    assert len(program.calls) == 6
    assert program.calls[0] == [
        "--algo=fedavg",
        "--task=mnist",
        "--total_rounds=3",
        "--seed=0",
    ]
    assert found.table.splitlines()[2:5] == [
        "| fedavg                        |        50.00 (10.00) |",
        "| fedprox proximal_strength=0.1 |         60.00 (0.00) |",
        "| fedprox proximal_strength=1   |         60.00 (0.00) |",
    ]
    assert found.num_failed == 0
    assert [line.get_label() for line in found.plot().axes[0].lines] == [
        "fedavg",
        "fedprox proximal_strength=0.1",
        "fedprox proximal_strength=1",
    ]
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", ["table.md", "fedavg+seed=0"])
def test_a_folder_that_cannot_be_written_to_the_end_is_named(program, name, tmp_path):
    # A folder in place of the table's file, a file in place of the run's folder.
    blocked = tmp_path / name
    blocked.mkdir() if name == "table.md" else blocked.touch()
    with pytest.raises(RunError, match=r"^--output_dir=\S+ cannot be written: "):
        compare_runs(
            "fedavg", task="mnist", seeds=1, output_dir=tmp_path, total_rounds=3
        )


def test_a_folder_is_one_comparisons_at_a_time(program, tmp_path):
    settings = {"task": "mnist", "seeds": 1, "output_dir": tmp_path, "total_rounds": 3}
    in_use = pytest.raises(FolderInUseError, match=r"in use by process \d+, started")
    with results_folder.locked(tmp_path), in_use:
        compare_runs("fedavg", **settings)
    assert not program.calls
    assert compare_runs("fedavg", **settings).num_failed == 0


@pytest.mark.parametrize("name", ["seeds", "jobs"])
def test_counts_below_one_are_errors(program, name):
    expected = re.escape(f"{name}=0: expected an integer >= 1.")
    with pytest.raises(RunError, match=expected):
        compare_runs("fedavg", task="mnist", **{name: 0})
