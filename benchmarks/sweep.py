"""Runs main.py over presets, a grid of flags and seeds, and prints one table.

    python benchmarks/sweep.py --grid=client_epochs_per_round=2,5,10 --seeds=3 \
        --sweep_dir=runs/sweep -- --algo=personalized_fedavg --task=emnist
    python benchmarks/sweep.py --sweep_dir=runs/m20 \
        '--flagfiles=presets/personalized_fedavg/table_1/fedavg_m20_*.flags' \
        --columns=rounds_to:0.8,final:eval/accuracy,seconds --plot=runs/m20/curves.png \
        -- --total_rounds=200

A row is a combination of a flag file and a point of the grid. Flags after `--` apply to
every run and override the flag files; the grid overrides both. The values of --columns:

    rounds_to:ACC  first evaluated round with eval/accuracy >= ACC, <= 1 ("-": never)
    final:METRIC   mean of the last 10 rows of metrics.csv that have it (or of all)
    last:METRIC    value in the last row that has it
    best:METRIC    the largest value; of a loss the smallest
    seconds        median seconds per round
    KEY            a number in summary.json: excluded.num_empty_clients; keys of
                   `personalization` need no prefix: initial_accuracy

Cells are means over seeds with the standard deviation (ddof 0); seeds without a value
are excluded. Accuracies are in percent.

The table is also written to SWEEP_DIR/table.md. A completed run is not repeated with
the same flags; a stopped run is resumed. A failed run is reported and excluded from
its row's cells; the other runs continue, and the exit status is 1.
"""

import concurrent.futures
import glob
import itertools
import math
import os
import pathlib
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
# Read when TensorFlow is imported; silences its C++ logs.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import attrs
import matplotlib
import matplotlib.figure
import numpy as np
from absl import app, flags

from benchmarks.comparison import tables
from benchmarks.main_program import MainProgram
from benchmarks.sweep_columns import (
    ACCURACY,
    Column,
    Results,
    SweepError,
    flag_error,
    format_cell,
    parse_column,
    read_results,
)
from tff_algos.experiments import files
from tff_algos.experiments.metrics_log import ROUND

_GRID = flags.DEFINE_multi_string(
    "grid", [], "A flag of main.py and its values: name=value,value. Repeatable."
)
_FLAGFILES = flags.DEFINE_list(
    "flagfiles", [], "Flag files of main.py, or patterns: a row for each file."
)
_SEEDS = flags.DEFINE_integer(
    "seeds", 3, "Seeds 0, 1, ... of every row.", lower_bound=1
)
_SWEEP_DIR = flags.DEFINE_string("sweep_dir", "runs/sweep", "Folder of the runs.")
_COLUMNS = flags.DEFINE_list(
    "columns",
    ["initial_accuracy", "personalized_accuracy"],
    "Columns of the table: rounds_to:ACC, final:METRIC, last:METRIC, best:METRIC, "
    "seconds, or keys of summary.json.",
)
_PLOT = flags.DEFINE_string(
    "plot", None, "File for the learning curves: eval/accuracy, a line for each row."
)
_JOBS = flags.DEFINE_integer(
    "jobs",
    1,
    "Concurrent runs; each has its own share of the CPUs.",
    lower_bound=1,
)

_NUM_LOG_LINES = 10
# The file with the flags of a completed run, in its folder, which identifies it.
_DONE_FILE = "done.flags"
# Flags of main.py that the sweep itself sets.
_OWN_FLAG = re.compile(r"--?(no)?(seed|output_dir|resume)(=|$)")


@attrs.frozen
class Row:
    """A row of the table: its name, and its flags of main.py."""

    label: str
    arguments: tuple[str, ...]


@attrs.frozen
class Run:
    """One call of main.py."""

    row: Row
    seed: int
    folder: pathlib.Path

    @property
    def arguments(self) -> list[str]:
        """All flags except the folder."""
        return [*self.row.arguments, f"--seed={self.seed}"]

    @property
    def flags_text(self) -> str:
        """The arguments as a flag file."""
        return "".join(f"{argument}\n" for argument in self.arguments)

    def is_done(self) -> bool:
        """Returns whether main.py has completed with these flags."""
        done = self.folder / _DONE_FILE
        return (
            (self.folder / "summary.json").exists()
            and done.exists()
            and done.read_text() == self.flags_text
        )


def make_rows(
    flagfiles: Sequence[str], grid: Sequence[str], common: Sequence[str]
) -> list[Row]:
    """Returns a row for each combination of a flag file and a point of the grid.

    Args:
      flagfiles: Flag files of main.py, or patterns; empty for rows without a file.
      grid: Axes "name=value,value".
      common: Flags of every row; may include flag files.

    Raises:
      SweepError: If a pattern matches nothing, an axis has no values, two rows have
        the same name, or a flag is one that the sweep itself sets.
    """
    paths = [path for pattern in flagfiles for path in _matches(pattern)]
    presets = [(path.stem, (f"--flagfile={path}",)) for path in paths] or [("", ())]
    rows = []
    for (stem, preset), point in itertools.product(presets, _points(grid)):
        label = " ".join(filter(None, [stem, *point])) or "defaults"
        arguments = _without_flagfiles(
            [*preset, *common, *(f"--{flag}" for flag in point)]
        )
        rows.append(Row(label, tuple(arguments)))
    labels = [row.label for row in rows]
    for label in labels:
        if labels.count(label) > 1:
            raise SweepError(
                f"--flagfiles and --grid: two rows are {label!r}; expected each once."
            )
    return rows


def _rows_of(paths: Iterable[str | pathlib.Path]) -> list[pathlib.Path]:
    """Returns the files among the paths, without what the rows of a folder share."""
    files = (path for path in map(pathlib.Path, paths) if path.is_file())
    return sorted(path for path in files if path.name != "common.flags")


def _matches(pattern: str) -> list[pathlib.Path]:
    found = _rows_of(glob.glob(pattern))
    if not found:
        folder = pathlib.Path(pattern).parent
        there = [path.name for path in _rows_of(folder.glob("*.flags"))]
        choices = f"a flag file; {folder} has {', '.join(there) or 'none'}"
        raise flag_error("flagfiles", pattern, choices)
    return found


def _points(grid: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yields every combination of the grid's values, as "name=value"."""
    axes = []
    for axis in grid:
        name, _, values = axis.partition("=")
        if not name or not values:
            raise flag_error("grid", axis, "name=value,value")
        axes.append([f"{name}={value}" for value in values.split(",")])
    return itertools.product(*axes)


def _without_flagfiles(arguments: Sequence[str]) -> list[str]:
    """Returns the flags, with flag files replaced by their flags."""
    try:
        found = flags.FlagValues().read_flags_from_files(arguments, force_gnu=False)
    except flags.Error as error:
        raise SweepError(str(error).removeprefix("ERROR:: ")) from error
    for argument in found:
        if _OWN_FLAG.match(argument):
            raise SweepError(
                f"{argument}: expected no seed, output_dir or resume for main.py; the "
                "sweep gives them, from --seeds and --sweep_dir."
            )
    return found


def make_runs(rows: Sequence[Row], seeds: int, output_dir: pathlib.Path) -> list[Run]:
    """Returns the runs of every row, each with its own folder."""
    runs = []
    for row, seed in itertools.product(rows, range(seeds)):
        name = re.sub(r"[^\w.,=+-]", "_", row.label.replace(" ", "+"))
        runs.append(Run(row, seed, output_dir / f"{name}+seed={seed}"))
    return runs


def execute(
    run: Run, program: Callable[[Sequence[str], pathlib.Path], int]
) -> Results | None:
    """Runs main.py, unless it has completed with these flags; None if it fails.

    If the folder has a run with other flags, main.py resumes it or fails.

    Args:
      run: The run.
      program: Runs main.py, like a `MainProgram`.
    """
    if not run.is_done():
        run.folder.mkdir(parents=True, exist_ok=True)
        log = run.folder / "log.txt"
        status = program([*run.arguments, f"--output_dir={run.folder}"], log)
        if status:
            _tell_failure(run, status, log)
            return None
        with files.replacing(run.folder / _DONE_FILE) as file:
            file.write(run.flags_text)
    print(f"{run.row.label}, seed {run.seed}: done", file=sys.stderr, flush=True)
    return read_results(run.folder)


def _tell_failure(run: Run, status: int, log: pathlib.Path) -> None:
    # Not read as text: each update of a progress line would become a line.
    written = log.read_bytes().decode(errors="replace").split("\n")
    lines = [line.rpartition("\r")[2] for line in written]
    last = [f"    {line}" for line in lines if line.strip()][-_NUM_LOG_LINES:]
    title = f"{run.row.label}, seed {run.seed}: exit status {status}, {log} ends:"
    print("\n".join([title, *last]), file=sys.stderr, flush=True)


def execute_all(
    runs: Sequence[Run],
    jobs: int,
    check: Callable[[Results], None],
    program: MainProgram,
) -> dict[Run, Results | None]:
    """Executes runs, `jobs` at a time, and returns their results, None if they failed.

    Args:
      runs: The runs.
      jobs: The number of concurrent runs.
      check: Called with each run's results as soon as it completes. If it raises, the
        other runs are stopped.
      program: Runs main.py.
    """
    with concurrent.futures.ThreadPoolExecutor(jobs) as executor:
        futures = {executor.submit(execute, run, program): run for run in runs}
        try:
            for future in concurrent.futures.as_completed(futures):
                if future.result() is not None:
                    check(future.result())
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            program.stop()
            raise
    return {run: future.result() for future, run in futures.items()}


def make_table(
    columns: Sequence[Column], outcomes: Mapping[Run, Results | None]
) -> str:
    """Returns the table, with a line for each row, in the order of `outcomes`."""
    lines = []
    for row, of_row in _by_row(outcomes).items():
        failed = [str(run.seed) for run, results in of_row.items() if results is None]
        label = f"{row.label} (failed: seed {', '.join(failed)})" if failed else None
        left = [results for results in of_row.values() if results is not None]
        cells = [
            format_cell(column, [column.value(results) for results in left])
            if left
            else "failed"
            for column in columns
        ]
        lines.append([label or row.label, *cells])
    header = ["flags", *(column.header for column in columns)]
    return tables.format_table(header, lines) + "\n"


def _by_row(
    outcomes: Mapping[Run, Results | None],
) -> dict[Row, dict[Run, Results | None]]:
    rows: dict[Row, dict[Run, Results | None]] = {}
    for run, results in outcomes.items():
        rows.setdefault(run.row, {})[run] = results
    return rows


def learning_curves(
    outcomes: Mapping[Run, Results | None],
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns the rounds [r] and accuracies [seeds, r] of completed runs, by label.

    Only rounds in which all seeds of a row were evaluated are included.
    """
    curves = {}
    for row, of_row in _by_row(outcomes).items():
        points = [
            {
                line[ROUND]: line[ACCURACY]
                for line in results.rows
                if not math.isnan(line.get(ACCURACY, math.nan))
            }
            for results in of_row.values()
            if results is not None
        ]
        rounds = sorted(set.intersection(*map(set, points))) if points else []
        if rounds:
            values = [[by_round[number] for number in rounds] for by_round in points]
            curves[row.label] = np.array(rounds), np.array(values)
    return curves


def plot_curves(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]], path: pathlib.Path
) -> None:
    """Plots the mean over seeds by round, with the range from minimum to maximum.

    Lines differ in lightness and dashes, so they are distinguishable in grayscale; the
    legend lists them in the order of their final values.
    """
    figure = matplotlib.figure.Figure(figsize=(7.2, 4.2), layout="constrained")
    axis = figure.subplots()
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.75, len(curves)))
    dashes = itertools.cycle(["-", "--", "-.", ":"])
    lines = []
    for shade, dash, (label, (rounds, values)) in zip(
        shades, dashes, curves.items(), strict=False
    ):
        per_cent = 100 * values
        axis.fill_between(
            rounds,
            per_cent.min(axis=0),
            per_cent.max(axis=0),
            color=shade,
            alpha=0.18,
            linewidth=0,
        )
        marker = "o" if len(rounds) == 1 else None
        mean = per_cent.mean(axis=0)
        lines += axis.plot(rounds, mean, dash, color=shade, marker=marker, label=label)
    lines.sort(key=lambda line: -line.get_ydata()[-1])
    axis.set_xlabel("round")
    axis.set_ylabel(f"{ACCURACY}, %")
    axis.set_title("mean over seeds; shaded: least to greatest", fontsize=9)
    axis.grid(alpha=0.3)
    figure.legend(handles=lines, loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=150)


def _check_plot(path: str) -> None:
    """Raises `SweepError` for an unsupported plot format, before hours of runs."""
    kinds = matplotlib.figure.Figure().canvas.get_supported_filetypes()
    if pathlib.Path(path).suffix[1:] not in kinds:
        raise flag_error(
            "plot", path, f"a name that ends in .{', .'.join(sorted(kinds))}"
        )


def _sweep(common: Sequence[str]) -> int:
    """Runs the sweep according to the flags and returns the exit status."""
    columns = [parse_column(name) for name in _COLUMNS.value]
    rows = make_rows(_FLAGFILES.value, _GRID.value, common)
    if _PLOT.value:
        _check_plot(_PLOT.value)
    output_dir = pathlib.Path(_SWEEP_DIR.value)
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        expected = f"a folder that can be written ({error.strerror})"
        raise flag_error("sweep_dir", output_dir, expected) from error

    def check(results: Results) -> None:
        for column in columns:
            column.value(results)
        if _PLOT.value:
            results.series(ACCURACY, "plot", _PLOT.value)

    runs = make_runs(rows, _SEEDS.value, output_dir)
    jobs = _JOBS.value
    outcomes = execute_all(runs, jobs, check, MainProgram(jobs))
    table = make_table(columns, outcomes)
    with files.replacing(output_dir / "table.md") as file:
        file.write(table)
    print(table, end="")
    curves = learning_curves(outcomes)
    if _PLOT.value and curves:
        pathlib.Path(_PLOT.value).parent.mkdir(parents=True, exist_ok=True)
        plot_curves(curves, pathlib.Path(_PLOT.value))
    return int(None in outcomes.values())


def main(argv: list[str]) -> None:
    """Entry point for absl; errors that the user can fix are one line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(_sweep(argv[1:]))
    except SweepError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    app.run(main)
