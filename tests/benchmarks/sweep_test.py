"""The sweep's rows, columns, table and plot, on runs that are made up."""

import csv
import json
import math
import pathlib
import re
import threading

import pytest
from absl import flags
from absl.testing import flagsaver

from benchmarks import sweep, sweep_columns
from benchmarks.sweep_columns import SweepError

SUMMARY = {
    "dataset": "made_up",
    "final_metrics": {"eval/accuracy": 0.75},
    "personalization": {
        "initial_accuracy": 0.5,
        "personalized_accuracy": 0.625,
        "accuracy_by_epoch": [0.5, 0.625],
    },
    "rounds_to_eval_accuracy": {"0.85": 40, "0.9": None},
    "excluded": {"num_empty_clients": 3},
}
# Accuracy after rounds 5, 10, ... of a run.
CURVE = (0.1, 0.3, 0.2, 0.5, 0.6)


def _write_run(folder, curve=CURVE, summary=SUMMARY, seconds=2.0):
    """Writes what main.py leaves: a row per round, an evaluation every fifth."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(summary))
    names = ["round", "stage", "seconds", "train/loss", "eval/accuracy", "eval/loss"]
    with open(folder / "metrics.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for number in range(1, 5 * len(curve) + 1):
            # The first round takes longer: something is compiled.
            row = {"round": number, "stage": "fedavg", "train/loss": 1 / number}
            row["seconds"] = 50.0 if number == 1 else seconds
            if number % 5 == 0:
                accuracy = curve[number // 5 - 1]
                row |= {"eval/accuracy": accuracy, "eval/loss": 1 - accuracy}
            writer.writerow(row)


def _results(folder, **kwargs):
    _write_run(folder, **kwargs)
    return sweep_columns.read_results(folder)


class _Program:
    """Stands for main.py: writes a run of its own curve, or fails."""

    def __init__(self, curves=(), failures=()):
        self._curves = dict(curves)
        self._failures = failures
        self.calls = []

    def __call__(self, arguments, log):
        *flags_given, output_dir = arguments
        self.calls.append(flags_given)
        folder = pathlib.Path(output_dir.removeprefix("--output_dir="))
        assert log == folder / "log.txt"
        if any(failure in folder.name for failure in self._failures):
            lines = [f"line {number}" for number in range(20)]
            log.write_text("\n".join([*lines, "round 1\rround 2", "error: broken"]))
            return 2
        _write_run(folder, curve=self._curves.get(folder.name, CURVE))
        return 0

    def stop(self):
        """Its calls end by themselves."""


@pytest.fixture
def run_sweep(tmp_path, monkeypatch, capsys):
    """Runs the sweep's `main` into a folder; returns (exit status, out, err)."""

    def run(program, *arguments, common=()):
        monkeypatch.setattr(sweep, "MainProgram", lambda jobs: program)
        monkeypatch.setattr(sweep.signal, "signal", lambda *_: None)
        capsys.readouterr()
        own = ("grid", "flagfiles", "seeds", "sweep_dir", "columns", "plot", "jobs")
        with flagsaver.flagsaver():
            for name in own:
                flags.FLAGS[name].unparse()
            flags.FLAGS(["sweep.py", f"--sweep_dir={tmp_path}/out", *arguments])
            with pytest.raises(SystemExit) as stop:
                sweep.main(["sweep.py", *common])
        return (stop.value.code, *capsys.readouterr())

    return run


def _cells(table):
    lines = [line.strip("| ").split("|") for line in table.strip().splitlines()]
    header, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return header, rows


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("rounds_to:0.3", 10),
        ("rounds_to:0.31", 20),
        ("rounds_to:0.61", None),
        ("final:eval/accuracy", sum(CURVE) / 5),
        ("last:eval/accuracy", 0.6),
        ("best:eval/accuracy", 0.6),
        ("best:eval/loss", 0.4),
        ("last:train/loss", 1 / 25),
        ("seconds", 2.0),
        ("initial_accuracy", 0.5),
        ("personalization.personalized_accuracy", 0.625),
        ("accuracy_by_epoch.1", 0.625),
        ("final_metrics.eval/accuracy", 0.75),
        ("final_metrics/eval/accuracy", 0.75),
        ("rounds_to_eval_accuracy.0.85", 40),
        ("rounds_to_eval_accuracy.0.9", None),
        ("excluded.num_empty_clients", 3),
    ],
)
def test_columns_are_numbers_of_a_run(tmp_path, column, expected):
    value = sweep_columns.parse_column(column).value(_results(tmp_path))
    assert value == (expected if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("best:eval/accuracy", 0.3),
        ("best:eval/loss", 0.7),
        ("final:eval/accuracy", 0.2),
        ("last:eval/accuracy", 0.3),
        ("rounds_to:0.3", 15),
        ("initial_accuracy", None),
        ("accuracy_by_epoch.1", None),
    ],
)
@pytest.mark.parametrize("absent", [None, math.nan])
def test_numbers_that_are_absent_count_in_no_column(tmp_path, column, expected, absent):
    summary = {
        "personalization": {
            "initial_accuracy": absent,
            "accuracy_by_epoch": [0, absent],
        }
    }
    results = _results(tmp_path, curve=(math.nan, 0.1, 0.3, math.nan), summary=summary)
    value = sweep_columns.parse_column(column).value(results)
    assert value == (expected if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("column", ["best:eval/loss", "final:eval/loss", "rounds_to:1"])
def test_a_column_of_nan_has_no_value(tmp_path, column):
    results = _results(tmp_path, curve=(math.nan,))
    parsed = sweep_columns.parse_column(column)
    assert parsed.value(results) is None
    assert sweep_columns.format_cell(parsed, [parsed.value(results)]) == "-"


def test_curves_leave_out_what_is_no_number(tmp_path):
    results = _results(tmp_path, curve=(0.1, math.nan, 0.3))
    run = sweep.Run(sweep.Row("a", ()), 0, tmp_path)
    rounds, values = sweep.learning_curves({run: results})["a"]
    assert list(rounds) == [5, 15] and values.tolist() == [[0.1, 0.3]]


def test_an_edited_metrics_file_is_an_error_that_names_it(tmp_path):
    _write_run(tmp_path)
    with open(tmp_path / "metrics.csv", "a") as file:
        file.write("3,fedavg\n")
    with pytest.raises(SweepError, match=r"metrics.csv cannot be read: line 27 has 2"):
        sweep_columns.read_results(tmp_path)


def test_the_final_value_is_the_mean_of_the_last_ten_evaluations(tmp_path):
    results = _results(tmp_path, curve=[0.9] * 5 + [0.1] * 5 + [0.2] * 5)
    column = sweep_columns.parse_column("final:eval/accuracy")
    assert column.value(results) == pytest.approx(0.15)


def test_the_best_value_may_be_before_the_last(tmp_path):
    results = _results(tmp_path, curve=(0.1, 0.8, 0.7))
    for column, expected in (("best:eval/accuracy", 0.8), ("best:eval/loss", 0.2)):
        value = sweep_columns.parse_column(column).value(results)
        assert value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("final:eval/accuracy", [0.5, 0.52], "51.00 (1.00)"),
        ("final:eval/accuracy", [0.12345], "12.35"),
        ("rounds_to:0.8", [10, 15, 20], "15 (4.1)"),
        ("rounds_to:0.8", [10, None, 15], "12.5 (2.5), 2 of 3"),
        ("rounds_to:0.8", [None, 15], "15, 1 of 2"),
        ("rounds_to:0.8", [None, None], "-"),
        ("rounds_to_eval_accuracy.0.85", [30, 50], "40 (10)"),
        ("best:eval/loss", [0.5, 1.5], "1.00 (0.500)"),
    ],
)
def test_cells_are_means_and_standard_deviations(column, values, expected):
    assert (
        sweep_columns.format_cell(sweep_columns.parse_column(column), values)
        == expected
    )


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("worst:eval/accuracy", "--columns=worst:eval/accuracy: .*rounds_to:ACC, fina"),
        ("final:", "--columns=final:: expected .*best:METRIC, seconds"),
        ("rounds_to:80", r"--columns=rounds_to:80: expected an accuracy in \(0, 1\]"),
        ("rounds_to:most", r"--columns=rounds_to:most: .* in \(0, 1\]"),
        ("final:eval/acc", "--columns=final:eval/acc: .*eval/accuracy, eval/loss, rou"),
        ("last:stage", "--columns=last:stage: expected one of eval/accuracy"),
        ("accuracy", "--columns=accuracy: .*initial_accuracy, personalized_.*summary."),
    ],
)
def test_unknown_columns_are_errors_that_name_the_choices(tmp_path, column, message):
    with pytest.raises(SweepError, match=message) as error:
        sweep_columns.parse_column(column).value(_results(tmp_path))
    assert "\n" not in str(error.value)


def test_runs_without_evaluations_have_no_rounds_to_an_accuracy(tmp_path):
    _write_run(tmp_path, curve=())
    (tmp_path / "metrics.csv").write_text("round,seconds\n1,2.0\n")
    results = sweep_columns.read_results(tmp_path)
    with pytest.raises(SweepError, match="rounds_to:0.5: expected one of round, sec"):
        sweep_columns.parse_column("rounds_to:0.5").value(results)


@pytest.fixture
def presets(tmp_path):
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "fedavg.flags").write_text("# A paper.\n--algo=fedavg\n--task=emnist\n")
    (folder / "uga.flags").write_text("--algo=uga\n")
    (folder / "notes.txt").write_text("")
    (folder / "common.flags").write_text("--task=mnist\n")
    return folder


def test_rows_are_flag_files_times_grid(presets):
    rows = sweep.make_rows(
        [f"{presets}/u*.flags", f"{presets}/fedavg.flags"],
        ["rate=0.1,0.2"],
        ["--rate=9", "--task=mnist"],
    )
    assert [row.label for row in rows] == [
        "uga rate=0.1",
        "uga rate=0.2",
        "fedavg rate=0.1",
        "fedavg rate=0.2",
    ]
    # Later flags override earlier ones.
    assert rows[2].arguments == (
        "--algo=fedavg",
        "--task=emnist",
        "--rate=9",
        "--task=mnist",
        "--rate=0.1",
    )


def test_a_pattern_gives_its_files_in_order(presets):
    rows = sweep.make_rows([f"{presets}/*.flags"], [], [])
    assert [row.label for row in rows] == ["fedavg", "uga"]


def test_rows_need_neither_flag_files_nor_grid(presets):
    assert sweep.make_rows([], [], ["--a=1"]) == [sweep.Row("defaults", ("--a=1",))]
    (row,) = sweep.make_rows([], [], [f"--flagfile={presets}/uga.flags", "--a=1"])
    assert row.arguments == ("--algo=uga", "--a=1")


@pytest.mark.parametrize(
    ("flagfiles", "grid", "common", "message"),
    [
        (["{}/x*"], [], [], "--flagfiles=.*/x.: .* has fedavg.flags, uga.flags"),
        (["{}"], [], [], "--flagfiles=.*: expected a flag file"),
        ([], ["rate"], [], "--grid=rate: expected name=value,value"),
        ([], ["rate="], [], "--grid=rate=: expected name=value,value"),
        ([], ["rate=1,1"], [], "two rows are 'rate=1'"),
        (["{0}/uga.flags", "{0}/u*"], [], [], "two rows are 'uga'"),
        ([], [], ["--seed=3"], "--seed=3: expected no seed"),
        ([], [], ["--noresume"], "--noresume: expected no seed, output_dir or resume"),
        ([], ["output_dir=a,b"], [], "--output_dir=a: expected no seed"),
        ([], [], ["--flagfile={}/none"], "^Unable to open flagfile.*none"),
    ],
)
def test_rows_that_cannot_be_made_are_errors(presets, flagfiles, grid, common, message):
    flagfiles, common = (
        [text.format(presets) for text in texts] for texts in (flagfiles, common)
    )
    with pytest.raises(SweepError, match=message) as error:
        sweep.make_rows(flagfiles, grid, common)
    assert "\n" not in str(error.value)


def test_the_table_has_a_line_per_row_and_is_written(run_sweep, tmp_path):
    program = _Program({"rate=2+seed=1": (0.2, 0.4), "rate=2+seed=0": (0.2, 0.3)})
    status, out, _ = run_sweep(
        program,
        "--grid=rate=1,2",
        "--seeds=2",
        "--columns=last:eval/accuracy,rounds_to:0.4,seconds",
        common=["--task=emnist"],
    )
    assert status == 0
    header, rows = _cells(out)
    assert header == ["flags", "last:eval/accuracy (%)", "rounds_to:0.4", "seconds"]
    assert rows == [
        ["rate=1", "60.00 (0.00)", "20 (0)", "2.00 (0)"],
        ["rate=2", "35.00 (5.00)", "10, 1 of 2", "2.00 (0)"],
    ]
    assert (tmp_path / "out" / "table.md").read_text() == out
    assert program.calls[0] == ["--task=emnist", "--rate=1", "--seed=0"]


def test_the_table_is_the_same_however_many_jobs(run_sweep, tmp_path):
    one, four = (
        run_sweep(
            _Program({"rate=2+seed=1": (0.2, 0.4)}),
            "--grid=rate=3,1,2",
            f"--jobs={jobs}",
            f"--sweep_dir={tmp_path}/{jobs}",
        )[1]
        for jobs in (1, 4)
    )
    assert one == four
    assert [row[0] for row in _cells(one)[1]] == ["rate=3", "rate=1", "rate=2"]


def test_runs_that_are_done_are_not_run_again(run_sweep, tmp_path):
    first = _Program()
    _, table, _ = run_sweep(first, "--grid=rate=1,2", "--seeds=2")
    assert len(first.calls) == 4
    # One that was stopped: it has no summary.
    (tmp_path / "out" / "rate=2+seed=1" / "summary.json").unlink()
    second = _Program()
    _, again, _ = run_sweep(second, "--grid=rate=1,2", "--seeds=2")
    assert second.calls == [["--rate=2", "--seed=1"]]
    assert again == table


def test_a_run_that_was_made_with_other_flags_is_left_to_main(run_sweep):
    run_sweep(_Program(), "--seeds=1", common=["--total_rounds=10"])
    program = _Program(curves={"defaults+seed=0": (0.1, 0.2)})
    _, table, _ = run_sweep(
        program,
        "--seeds=1",
        "--columns=last:eval/accuracy",
        common=["--total_rounds=20"],
    )
    assert program.calls == [["--total_rounds=20", "--seed=0"]]
    assert _cells(table)[1] == [["defaults", "20.00"]]


def test_what_a_flag_file_holds_decides_whether_a_run_is_done(run_sweep, presets):
    preset = presets / "uga.flags"
    run_sweep(_Program(), f"--flagfiles={preset}", "--seeds=1")
    preset.write_text("--algo=uga\n--task=mnist\n")
    program = _Program()
    run_sweep(program, f"--flagfiles={preset}", "--seeds=1")
    assert program.calls == [["--algo=uga", "--task=mnist", "--seed=0"]]


def test_failures_are_told_and_the_other_rows_go_on(run_sweep, tmp_path):
    program = _Program(failures=("rate=1+seed=1", "rate=2"))
    status, out, err = run_sweep(program, "--grid=rate=1,2,3", "--seeds=2")
    assert status == 1 and len(program.calls) == 6
    assert [row[:2] for row in _cells(out)[1]] == [
        ["rate=1 (failed: seed 1)", "50.00"],
        ["rate=2 (failed: seed 0, 1)", "failed"],
        ["rate=3", "50.00 (0.00)"],
    ]
    told = err[err.index("rate=1, seed 1: exit status 2, ") :].splitlines()[1:11]
    assert told == [f"    line {n}" for n in range(12, 20)] + [
        "    round 2",
        "    error: broken",
    ]
    # Those that failed are tried again, the others are not.
    again = _Program()
    assert run_sweep(again, "--grid=rate=1,2,3", "--seeds=2")[0] == 0
    assert len(again.calls) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--columns=final:eval/acc"], "error: --columns=final:eval/acc: expected"),
        (["--columns=nothing"], "error: --columns=nothing: expected one of initial_"),
        (["--plot=curves.doc"], "error: --plot=curves.doc: .*\\.png"),
        (["--flagfiles=no/*.flags"], "error: --flagfiles=no/\\*.flags: .*no has none"),
        (["--sweep_dir=/dev/null/a"], "error: --sweep_dir=/dev/null/a: .*folder"),
    ],
)
def test_wrong_flags_are_one_line(run_sweep, arguments, message):
    program = _Program()
    status, out, err = run_sweep(program, *arguments)
    *_, last = err.splitlines()
    assert status == 2 and out == ""
    assert re.match(message, last)


class _EndlessAfterOne(_Program):
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


def test_a_column_that_is_missing_stops_the_sweep_after_the_first_run(run_sweep):
    program = _EndlessAfterOne()
    status, _, err = run_sweep(program, "--grid=rate=1,2,3", "--columns=final:nothing")
    assert status == 2 and "--columns=final:nothing" in err
    assert program.calls == [["--rate=1", "--seed=0"]]


def test_curves_are_over_the_rounds_that_all_seeds_have(run_sweep, tmp_path):
    longer, shorter = (
        _results(tmp_path / str(len(curve)), curve=curve)
        for curve in ((0.1, 0.2, 0.3), (0.3, 0.4))
    )
    row = sweep.Row("a", ())
    runs = [sweep.Run(row, seed, tmp_path) for seed in range(3)]
    curves = sweep.learning_curves(
        dict(zip(runs, (longer, None, shorter), strict=True))
    )
    rounds, values = curves["a"]
    assert list(rounds) == [5, 10]
    assert values.tolist() == [[0.1, 0.2], [0.3, 0.4]]


def test_learning_curves_are_drawn(run_sweep, tmp_path):
    path = tmp_path / "plots" / "curves.png"
    status, _, _ = run_sweep(_Program(), "--grid=rate=1,2", f"--plot={path}")
    assert status == 0 and path.read_bytes().startswith(b"\x89PNG")
