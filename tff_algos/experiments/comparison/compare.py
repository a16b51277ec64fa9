"""A comparison as a function: rows are run, each run in a process, and reported on."""

import contextlib
import csv
import io
import numbers
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import matplotlib.figure

from tff_algos import messages
from tff_algos.experiments import plugins, results_folder, run_flags
from tff_algos.experiments.comparison import checks, figures, page, report
from tff_algos.experiments.comparison.columns import (
    Column,
    Results,
    columns_of_any,
    default_columns,
    parse_column,
)
from tff_algos.experiments.comparison.errors import ComparisonError, flag_error
from tff_algos.experiments.comparison.live import LiveTable
from tff_algos.experiments.comparison.processes import Program
from tff_algos.experiments.comparison.rows import Row, default_folder, make_rows
from tff_algos.experiments.comparison.runs import (
    Outcomes,
    Run,
    check_folders,
    execute_all,
    make_runs,
    tell_failure,
)
from tff_algos.hyperparameters import NONE, check_list


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
        dataset = page.shared_dataset(self.outcomes)
        return figures.plot_curves(figures.learning_curves(self.outcomes), dataset)

    def _repr_markdown_(self) -> str:
        return self.table


def compare(
    *contenders: str | os.PathLike[str],
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
      columns: The table's columns, by their names in `main.py compare --help`; () for
        the usual ones.
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
    for contender in contenders:
        if not isinstance(contender, str | os.PathLike):
            raise ComparisonError(
                f"{messages.shown(contender)} is no contender: expected names of "
                "algorithms, flag files or folders of runs, one by one."
            )
    if "task" in settings and not isinstance(settings["task"], str):
        raise ComparisonError(
            f"task={messages.shown(settings['task'])}: expected a name; runs of a "
            "comparison are other processes, which load the task themselves (modules=)."
        )
    check_list("columns", columns)
    check_list("modules", modules)
    contenders = tuple(map(os.fspath, contenders))
    common = [f"--{name}={_text(value)}" for name, value in settings.items()]
    common += [f"--module={name}" for name in modules]
    if not isinstance(grid, Mapping | None):
        raise ComparisonError(
            f"grid={messages.shown(grid)}: expected lists of values by setting, such as "
            '{"client_learning_rate": [0.1, 0.3]}.'
        )
    axes = [_axis(name, values) for name, values in (grid or {}).items()]
    for name, value in (("seeds", seeds), ("jobs", jobs)):
        if not isinstance(value, numbers.Integral) or value < 1:
            raise ComparisonError(f"{name}={value!r}: expected an integer >= 1.")
    what = run_flags.declared(tuple(modules))
    rows = make_rows(contenders, common, axes, what)
    wanted = [parse_column(name) for name in columns]
    folder = pathlib.Path(output_dir or default_folder(contenders, common))
    return run(rows, modules, seeds, wanted, jobs, folder)


def _text(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _axis(name: str, values: Sequence[Any]) -> str:
    """Returns an axis of a grid; values with commas are quoted."""
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise ComparisonError(f"grid: {name}={values!r}, expected a list of values.")
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(map(_text, values))
    return f"{name}={line.getvalue()}"


def run(
    rows: Sequence[Row],
    modules: Sequence[str],
    seeds: int,
    columns: Sequence[Column],
    jobs: int,
    folder: pathlib.Path,
) -> Comparison:
    """Runs the rows that are not done, and reports on all.

    Args:
      rows: The rows.
      modules: Modules of other packages whose algorithms and tasks to offer.
      seeds: Every row is run with the seeds 0, 1, ...
      columns: The table's columns; () for the usual ones.
      jobs: The number of concurrent runs.
      folder: The folder of the report and of the runs.

    Raises:
      ComparisonError: If a row cannot be run, or the folder cannot be used; or, after
        all runs, if none of them has one of the columns.
      FolderInUseError: If another comparison writes to the folder.
      OutputError: If the folder cannot be written to the end.
    """
    with _held(folder):
        for note in report.notes({row: () for row in rows}):
            print(note, file=sys.stderr, flush=True)
        runs = make_runs(rows, seeds, folder)
        check_folders(runs)
        to_run = dict.fromkeys(run.row for run in runs if not run.is_done)
        choices = plugins.load(modules)
        checks.check(list(to_run), plugins.declare(choices), choices)
        failed, noted = [], set()
        with LiveTable(runs) as live:

            def ended(run: Run, results: Results | None) -> None:
                if results is None:
                    failed.append(run)
                else:
                    # Runs go on: another row may have it, and tables are soon remade.
                    _, missing = columns_of_any(columns, [results])
                    for name in missing.keys() - noted:
                        live.note(f"--columns={name}: {run.row.label} does not have it")
                    noted.update(missing)
                live.ended(run, results)

            with results_folder.naming_errors(folder):
                outcomes = execute_all(runs, jobs, ended, Program(jobs))
        for run in failed:
            tell_failure(run)
        left = [each for of in outcomes.values() for each in of if each is not None]
        shown, unknown = columns_of_any(columns, left)
        with results_folder.naming_errors(folder):
            cells = report.write(folder, shown or default_columns(left), outcomes)
        if unknown:
            first = next(iter(unknown.values()))
            raise ComparisonError(f"{first} {folder} has the report without it.")
        return Comparison(folder=folder, outcomes=outcomes, cells=cells)


@contextlib.contextmanager
def _held(folder: pathlib.Path) -> Iterator[None]:
    """Creates a comparison's folder, and locks out other comparisons."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        expected = f"a folder that can be written ({error.strerror})"
        raise flag_error("output_dir", folder, expected) from error
    with contextlib.ExitStack() as held:
        with results_folder.naming_errors(folder):
            held.enter_context(results_folder.locked(folder))
        yield
