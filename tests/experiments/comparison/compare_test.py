"""A comparison as a function."""

import json
import re

import pytest

from tests.testing import programs
from tests.testing.made_up_runs import SUMMARY, write_run
from tff_algos.experiments import compare as compare_runs
from tff_algos.experiments import results_folder
from tff_algos.experiments.comparison import compare
from tff_algos.experiments.comparison.errors import ComparisonError
from tff_algos.experiments.errors import FolderInUseError, RunError
from tff_algos.hyperparameters import HyperparameterError


def test_names_with_commas_are_quoted_in_lists():
    assert compare._text(["a,x", "b"]) == '"a,x",b'


@pytest.fixture
def program(monkeypatch):
    return programs.stand_in(monkeypatch)


def test_fewer_runs_than_jobs_share_all_cpus(program, monkeypatch, tmp_path):
    jobs = []
    monkeypatch.setattr(compare, "Program", lambda of: jobs.append(of) or program)
    for _ in range(2):
        compare_runs(
            "fedavg", "fedprox", task="mnist", seeds=1, jobs=8, output_dir=tmp_path
        )
    assert jobs == [2, 1]


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
        attack=None,
        # Of these, no flag says that they are not set.
        cache_dir=None,
        malicious_clients=None,
    )
    assert len(program.calls) == 6
    assert program.calls[0] == [
        "--algo=fedavg",
        "--attack=none",
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
    # The best at the end comes first.
    assert [line.get_label() for line in found.plot().axes[0].lines] == [
        "fedprox proximal_strength=0.1",
        "fedprox proximal_strength=1",
        "fedavg",
    ]
    assert (tmp_path / "report.html").exists()


def test_a_misspelt_column_stops_no_run(program, tmp_path, capsys):
    unknown = r"--columns=last:eval/acc: expected one of eval/accuracy, .* without it"
    with pytest.raises(ComparisonError, match=unknown):
        compare_runs(
            "fedavg",
            "uga",
            task="mnist",
            seeds=2,
            columns=["last:eval/acc", "last:eval/loss"],
            output_dir=tmp_path,
        )
    assert len(program.calls) == 4
    said = capsys.readouterr().err
    assert said.count("--columns=last:eval/acc: fedavg does not have it\n") == 1
    header = (tmp_path / "table.md").read_text().splitlines()[0]
    assert "last:eval/loss" in header and "acc" not in header


def test_a_row_without_a_column_has_an_empty_cell(tmp_path):
    write_run(tmp_path / "plain")
    people = SUMMARY["personalization"] | {"own_accuracy": 0.5}
    write_run(tmp_path / "own", summary=SUMMARY | {"personalization": people})
    config = {"hyperparameters": {"algo": "ditto", "task": "mnist", "seed": 0}}
    (tmp_path / "own" / "config.json").write_text(json.dumps(config))
    folders = [str(tmp_path / name) for name in ("plain", "own")]
    found = compare_runs(*folders, columns=["own_accuracy"], output_dir=tmp_path)
    plain, own = (line.split("|")[2].strip() for line in found.table.splitlines()[2:4])
    assert (plain, own) == ("-", "50.00")


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
    for value in (0, 1.5, "3"):
        expected = re.escape(f"{name}={value!r}: expected an integer >= 1.")
        with pytest.raises(RunError, match=expected):
            compare_runs("fedavg", task="mnist", **{name: value})


@pytest.mark.parametrize(
    ("contenders", "settings", "message"),
    [
        (
            [["fedavg", "scaffold"]],
            {},
            r"\['fedavg', 'scaffold'\] is no contender: expect",
        ),
        (["fedavg"], {"task": 3}, "task=3: expected a name, a Task or a TaskEntry."),
        (
            ["fedavg"],
            {"columns": "seconds"},
            r"columns='seconds' .*a list, such as \['se",
        ),
        (
            ["fedavg"],
            {"modules": "fed_yogi"},
            r"modules='fed_yogi' .*such as \['fed_yogi",
        ),
        (["fedavg"], {"grid": "q=0.1"}, "grid='q=0.1': expected lists of values"),
        (["fedavg"], {"grid": {"q": 0.1}}, "grid: q=0.1, expected a list of values"),
    ],
)
def test_arguments_of_another_kind_are_named(program, contenders, settings, message):
    with pytest.raises((RunError, HyperparameterError), match=message):
        compare_runs(*contenders, **{"task": "mnist", **settings})
    assert not program.calls


def test_no_value_of_an_unknown_setting_is_an_error(tmp_path):
    with pytest.raises(RunError, match="learn_rate"):
        compare_runs("fedavg", task="mnist", output_dir=tmp_path, learn_rate=None)
