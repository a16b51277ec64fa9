"""What is wrong with a row is found before any row runs."""

import contextlib
import io
import sys

import pytest
import tqdm

from tff_algos.experiments import plugins
from tff_algos.experiments.comparison import checks
from tff_algos.experiments.comparison.errors import ComparisonError
from tff_algos.experiments.comparison.rows import make_rows


@pytest.fixture(scope="module")
def choices():
    return plugins.own()


@pytest.fixture(scope="module")
def what(choices):
    return plugins.declare(choices)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    rows = [f"{i % 7},{i % 2},{'abcd'[i % 4]}" for i in range(80)]
    path.write_text("\n".join(["x,label,client", *rows]))
    return f"--task=csv:{path}"


def test_rows_that_can_run_pass_and_what_tasks_say_is_said_once(
    what, choices, table, capsys
):
    flags = [table, "--features=x", "--clients_per_round=2"]
    rows = make_rows(["fedavg", "fedsgd"], flags, [], what)
    datasets = checks.check(rows, what, choices)
    assert datasets == dict.fromkeys(rows, "table")
    said = capsys.readouterr().err.splitlines()
    told = [line.partition("  ")[0] for line in said if "has been running" not in line]
    assert told == [
        "checking 2 rows",
        "table: 80 examples of 1 feature in 2 classes (0, 1), 10 clients.",
        "fedavg: check 1/2",
        "fedsgd: check 2/2",
    ]


@pytest.mark.parametrize(
    ("common", "message"),
    [
        (
            ["--clients_per_round=5"],
            "^fedavg: --clients_per_round=5 is more than the 4",
        ),
        (["--runtime=ray", "--ray_workers=0"], "^fedavg: --ray_workers=0 is not valid"),
        (["--ray_workers=2"], "^fedavg: --ray_workers=2 cannot be used with --runtime"),
        (["--malicious_clients=z", "--attack=bias:1"], "^fedavg: --malicious_clients"),
    ],
)
def test_what_only_data_can_tell_is_an_error_of_the_row(
    what, choices, table, common, message
):
    flags = [table, "--client_column=client", *common]
    rows = make_rows(["fedavg"], flags, [], what)
    with pytest.raises(ComparisonError, match=message) as error:
        checks.check(rows, what, choices)
    assert "\n" not in str(error.value)


def test_progress_bars_are_drawn_and_lines_are_kept():
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    kept = checks._Notices(terminal)
    assert kept.isatty()
    with tqdm.tqdm(total=2, file=terminal), contextlib.redirect_stderr(kept):
        print("a notice", file=sys.stderr)
        for _ in tqdm.tqdm(range(3), desc="download", mininterval=0):
            pass
        print("another", file=sys.stderr)
    assert kept.getvalue() == "a notice\nanother\n"
    drawn = terminal.getvalue()
    assert "download: 100%" in drawn
    # Lines down and up again: the second bar stays below the first.
    assert drawn.count("\n") >= drawn.count("\x1b[A") > 0
