"""A comparison as a function and as a command.

    python main.py compare fedavg scaffold --task=mnist --partition=dirichlet:0.1
    python main.py compare 'presets/gradma/mnist_10_per_round_0.01/*.flags' --seeds=1
    python main.py compare runs/one runs/another

What is compared are algorithms, flag files, and folders of completed runs. The command's
own flags:

    --seeds=3           seeds of every row
    --jobs=1            concurrent runs
    --grid=NAME=V1,V2   a row for each value of a flag; several make a grid
    --columns=C1,C2     columns of the table, of those below
    --output_dir=DIR    folder of the runs and the report (runs/comparison-..., one for
                        each task, folder of flag files and set of other flags)

Flags of a run hold for every row that has them. The columns of the table:

    rounds_to:ACC  first evaluated round with eval/accuracy >= ACC, <= 1 ("-": never)
    final:METRIC   mean of the last 10 rows of metrics.csv that have it (or of all)
    last:METRIC    value in the last row that has it
    best:METRIC    the largest value; of a loss the smallest
    seconds        median seconds per round
    KEY            a number in summary.json: excluded.num_empty_clients; keys of
                   `personalization` need no prefix: initial_accuracy

Cells are means over seeds with the standard deviation (ddof 0); seeds without a value
are excluded. A completed run is not repeated with the same flags, a stopped run is
resumed, and a failed run is reported while the others go on.
"""

import csv
import io
import pathlib
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import matplotlib.figure
from absl import flags

from tff_algos.experiments import plugins, run_flags
from tff_algos.experiments.comparison import checks, figures, report
from tff_algos.experiments.comparison.columns import (
    Column,
    ComparisonError,
    Results,
    default_columns,
    flag_error,
    parse_column,
)
from tff_algos.experiments.comparison.live import LiveTable
from tff_algos.experiments.comparison.processes import Program
from tff_algos.experiments.comparison.rows import Row, make_rows, serialized
from tff_algos.experiments.comparison.runs import (
    Outcomes,
    Run,
    check_folders,
    default_folder,
    execute_all,
    make_runs,
    tell_failure,
)
from tff_algos.experiments.declarations import Declarations


@attrs.frozen(kw_only=True)
class Comparison:
    """What a comparison came to.

    Attributes:
      folder: The folder of the report and of the runs.
      outcomes: The results of every row's runs; None for one that failed.
      cells: The table.
    """

    folder: pathlib.Path
    outcomes: Outcomes = attrs.field(repr=False)
    cells: report.Table = attrs.field(repr=False)

    @property
    def table(self) -> str:
        """The table, in Markdown."""
        return self.cells.markdown

    @property
    def num_failed(self) -> int:
        """The number of runs that failed."""
        return sum(each is None for of in self.outcomes.values() for each in of)

    def plot(self) -> matplotlib.figure.Figure:
        """Draws the learning curves, the mean and range over seeds of every row."""
        return figures.plot_curves(figures.learning_curves(self.outcomes))

    def _repr_markdown_(self) -> str:
        return self.table


def compare(
    *contenders: str,
    seeds: int = 3,
    grid: Mapping[str, Sequence[Any]] | None = None,
    columns: Sequence[str] = (),
    jobs: int = 1,
    output_dir: str | pathlib.Path | None = None,
    modules: Sequence[str] = (),
    **settings: Any,
) -> Comparison:
    """Runs algorithms with several seeds, each run in a process, and reports on them.

        compare("fedavg", "scaffold", task="mnist", partition="dirichlet:0.1").plot()

    Args:
      *contenders: Algorithms, flag files or patterns of them, and folders of completed
        runs.
      seeds: Every row is run with the seeds 0, 1, ...
      grid: Values to try by setting: every combination makes a row.
      columns: The table's columns, as in this module's description; () for the usual
        ones.
      jobs: The number of concurrent runs, each with its share of the CPUs.
      output_dir: The folder of the report and of the runs. Completed runs there are not
        repeated. By default `runs/comparison-...`, another one for another task, folder
        of flag files, or other settings.
      modules: Modules of other packages whose algorithms and tasks to offer.
      **settings: Flags of every row that has them: `task`, `data`, `total_rounds`, ...

    Returns:
      What the comparison came to.

    Raises:
      ComparisonError: If a row cannot be made as asked; then nothing was run.
      HyperparameterError: If a setting is invalid.
      RunError: If there is no such algorithm or task.
    """
    common = [f"--{name}={_text(value)}" for name, value in settings.items()]
    common += [f"--module={name}" for name in modules]
    axes = [_axis(name, values) for name, values in (grid or {}).items()]
    if seeds < 1:
        raise ComparisonError(f"seeds={seeds}: expected an integer >= 1.")
    if jobs < 1:
        raise ComparisonError(f"jobs={jobs}: expected an integer >= 1.")
    plan = _plan(contenders, common, axes, modules)
    wanted = [parse_column(name) for name in columns]
    folder = pathlib.Path(output_dir or default_folder(contenders, common))
    return _run(plan, seeds, wanted, jobs, folder)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _axis(name: str, values: Sequence[Any]) -> str:
    """Returns an axis of a grid; values with commas are quoted."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(map(_text, values))
    return f"{name}={line.getvalue()}"


@attrs.frozen(kw_only=True)
class _Plan:
    """What is compared, and what there is to set."""

    rows: Sequence[Row]
    what: Declarations
    choices: plugins.Choices


def _plan(
    contenders: Sequence[str],
    common: Sequence[str],
    grid: Sequence[str],
    modules: Sequence[str],
) -> _Plan:
    if not contenders:
        raise ComparisonError(
            "nothing to compare: name algorithms, flag files or folders of runs."
        )
    choices = plugins.load(modules)
    what = plugins.declare(choices)
    rows = make_rows(contenders, common, grid, what)
    return _Plan(rows=rows, what=what, choices=choices)


def _run(
    plan: _Plan,
    seeds: int,
    columns: Sequence[Column],
    jobs: int,
    folder: pathlib.Path,
) -> Comparison:
    rows = plan.rows
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        expected = f"a folder that can be written ({error.strerror})"
        raise flag_error("output_dir", folder, expected) from error
    for note in report.notes({row: () for row in rows}):
        print(note, file=sys.stderr, flush=True)
    runs = make_runs(rows, seeds, folder)
    check_folders(runs)
    to_run = dict.fromkeys(run.row for run in runs if not run.is_done)
    checks.check(list(to_run), plan.what, plan.choices)
    failed = []
    with LiveTable(runs) as live:

        def ended(run: Run, results: Results | None) -> None:
            if results is None:
                failed.append(run)
            else:
                for column in columns:
                    column.value(results)  # Raises an error for unknown columns.
            live.ended(run, results)

        outcomes = execute_all(runs, jobs, ended, Program(jobs))
    for run in failed:
        tell_failure(run)
    left = [each for of in outcomes.values() for each in of if each is not None]
    labels = ", ".join(row.label for row in rows)
    cells = report.write(folder, labels, columns or default_columns(left), outcomes)
    return Comparison(folder=folder, outcomes=outcomes, cells=cells)


def parse(arguments: Sequence[str]) -> tuple[flags.FlagValues, list[str], list[str]]:
    """Returns the command's own flags, what is compared, and the rows' flags.

    Raises:
      ComparisonError: If a flag is unknown or cannot be parsed.
    """
    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    flags.DEFINE_multi_string(
        "grid", [], "A flag and its values, name=value,value.", flag_values=values
    )
    flags.DEFINE_integer(
        "seeds", 3, "Seeds of every row.", lower_bound=1, flag_values=values
    )
    flags.DEFINE_list("columns", [], "Columns of the table.", flag_values=values)
    flags.DEFINE_integer(
        "jobs", 1, "Concurrent runs.", lower_bound=1, flag_values=values
    )
    flags.DEFINE_bool("help", False, "Explain the command.", flag_values=values)
    own = set(values)
    modules = [
        argument.partition("=")[2]
        for argument in arguments
        if argument.startswith(("--module=", "-module="))
    ]
    run_flags.define(run_flags.declared(tuple(modules)), values)
    try:
        _, *contenders = values(["compare", *arguments])
    except (flags.Error, ValueError) as error:
        text = " ".join(str(error).removeprefix("ERROR:: ").split())
        raise ComparisonError(text) from error
    rest = {name for name in values if values[name].present}
    rest -= {*own, "output_dir", "flagfile"}
    return values, contenders, serialized(values, rest)


def main(arguments: Sequence[str]) -> int:
    """Does what the command line asks for and returns the exit status.

    Args:
      arguments: What follows `compare`.

    Returns:
      0, or 1 if a run failed.

    Raises:
      ComparisonError: If a row cannot be made as asked.
    """
    values, contenders, common = parse(arguments)
    if values.help:
        print(__doc__)
        print(values.get_help(include_special_flags=False).split("\n\n")[0])
        return 0
    columns = [parse_column(name) for name in values.columns]
    plan = _plan(contenders, common, values.grid, values.module)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = pathlib.Path(values.output_dir or default_folder(contenders, common))
    try:
        found = _run(plan, values.seeds, columns, values.jobs, folder)
    except (KeyboardInterrupt, SystemExit):
        print(
            f"stopped; the same command goes on in {folder}",
            file=sys.stderr,
        )
        raise
    table = found.table
    if sys.stdout.isatty():
        table = found.cells.for_width(shutil.get_terminal_size().columns)
    print(f"\n{table}\nReport: {folder / report.PAGE_FILE}")
    return int(found.num_failed > 0)
