"""A comparison as a function and as a command."""

import re

import pytest

from tests.testing.made_up_runs import write_run
from tests.testing.programs import Program
from tff_algos.experiments import compare as compare_runs
from tff_algos.experiments import declarations
from tff_algos.experiments.comparison import compare
from tff_algos.experiments.errors import RunError


@pytest.fixture
def program(monkeypatch):
    """Stands for the command line, for the checks, and for what takes seconds."""
    program = Program({"fedavg+seed=1": (0.2, 0.4)})
    monkeypatch.setattr(compare, "Program", lambda jobs: program)
    monkeypatch.setattr(compare.checks, "check", lambda *_: None)
    monkeypatch.setattr(compare.plugins, "declare", lambda _: declarations.load())
    monkeypatch.setattr(compare.signal, "signal", lambda *_: None)
    return program


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


def test_the_command_prints_the_table_and_goes_on_where_it_was(
    program, tmp_path, capsys
):
    words = ["fedavg", "uga", "--task=mnist", "--seeds=1", f"--output_dir={tmp_path}"]
    assert compare.main(words) == 0
    first = capsys.readouterr().out
    assert "held-out accuracy, %" in first and f"Report: {tmp_path}" in first
    assert compare.main(words) == 0
    assert capsys.readouterr().out == first
    assert len(program.calls) == 2


def test_existing_runs_need_no_task(program, tmp_path, capsys):
    write_run(tmp_path / "a", curve=(0.5,))
    assert compare.main([str(tmp_path / "a"), f"--output_dir={tmp_path}/out"]) == 0
    assert "fedavg (a)" in capsys.readouterr().out
    assert program.calls == []


def test_a_failed_run_is_told_and_the_exit_status_is_1(program, tmp_path, capsys):
    program._failures = ("uga",)
    words = ["fedavg", "uga", "--task=mnist", "--seeds=2", f"--output_dir={tmp_path}"]
    assert compare.main(words) == 1
    out, err = capsys.readouterr()
    assert "uga (2 of 2 failed)" in out
    assert "uga, seed 1: failed, " in err and "error: broken" in err


def test_help_says_what_the_command_does(capsys):
    assert compare.main(["--help"]) == 0
    assert "rounds_to:ACC" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to compare: name algorithms, flag files or folders of runs"),
        (["fedavg", "--task=mnist", "--columns=final:"], "--columns=final:: expected"),
        (
            ["fedavg", "--task=mnist", "--columns=nothing"],
            "--columns=nothing: expected",
        ),
        (["fedavg", "--task=mnist", "--seeds=0"], "seeds=0"),
        (["fedavg", "--task=mnist", "--job=2"], "Unknown command line flag 'job'"),
        (
            ["fedavg", "--task=mnist", "--output_dir=/dev/null/a"],
            "/dev/null/a: .*folder",
        ),
    ],
)
def test_wrong_flags_are_one_line(program, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=message) as error:
        compare.main(words)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["seeds", "jobs"])
def test_counts_below_one_are_errors(program, name):
    expected = re.escape(f"{name}=0: expected an integer >= 1.")
    with pytest.raises(RunError, match=expected):
        compare_runs("fedavg", task="mnist", **{name: 0})
