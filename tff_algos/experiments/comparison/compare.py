"""A comparison as a function: rows are run and reported on."""

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

from tasks.task import Task, TaskEntry
from tff_algos import messages
from tff_algos.execution import devices
from tff_algos.experiments import plugins, results_folder, run_flags
from tff_algos.experiments.comparison import checks, figures, page, report
from tff_algos.experiments.comparison.columns import (
    Column,
    Results,
    columns_of_any,
    default_columns,
    parse_column,
    read_results,
)
from tff_algos.experiments.comparison.errors import ComparisonError, flag_error
from tff_algos.experiments.comparison.here import ProgramHere
from tff_algos.experiments.comparison.live import LiveTable
from tff_algos.experiments.comparison.processes import Program
from tff_algos.experiments.comparison.rows import Row, folder_of, make_rows
from tff_algos.experiments.comparison.runs import (
    Outcomes,
    Run,
    check_datasets,
    check_folders,
    execute_all,
    execute_in_turn,
    make_runs,
    tell_failure,
)
from tff_algos.experiments.declarations import Declarations
from tff_algos.experiments.launch_options import Launch
from tff_algos.experiments.recipe import Recipe
from tff_algos.hyperparameters import NONE, check_list


@attrs.frozen(kw_only=True)
class Comparison:
    """The results of a comparison.

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
        subject = page.shared_subject(self.outcomes)
        labelled = page.with_attacks_in_labels(self.outcomes)
        return figures.plot_curves(figures.learning_curves(labelled), subject)

    def _repr_markdown_(self) -> str:
        return self.table


def compare(
    *contenders: str | os.PathLike[str] | Recipe,
    seeds: int = 3,
    grid: Mapping[str, Sequence[Any]] | None = None,
    columns: Sequence[str] = (),
    jobs: int = 1,
    output_dir: str | pathlib.Path | None = None,
    modules: Sequence[str] = (),
    **settings: Any,
) -> Comparison:
    """Runs algorithms with several seeds and reports on them.

        compare("fedavg", "scaffold", task="mnist", partition="dirichlet:0.1").plot()

    Each run is a process of its own, except if an algorithm is a recipe or the task is
    an object: then runs are in this process, one after the other.

    Args:
      *contenders: Algorithms by name or as recipes, flag files or patterns of them, and
        folders of completed runs.
      seeds: Every row is run with the seeds 0, 1, ...
      grid: Values to try by setting: every combination makes a row.
      columns: The table's columns, by their names in `main.py compare --help`; () for
        the usual ones.
      jobs: The number of concurrent runs, each with its share of the CPUs.
      output_dir: The folder of the report and of the runs. Completed runs there are not
        repeated, unless the code of their recipe has changed. By default
        `runs/comparison-...`, another one for another task, folder of flag files, or
        other settings.
      modules: Modules of other packages whose algorithms and tasks to offer.
      **settings: Flags of every row that has them: `task`, `data`, `total_rounds`, ...
        The task can be an entry, or a task that is loaded. What made a loaded task, such
        as the partition, is the same for all seeds.

    Returns:
      The results of the comparison.

    Raises:
      ComparisonError: If a row cannot be made as asked; then nothing was run.
      HyperparameterError: If a setting is invalid.
      RunError: If there is no such algorithm or task, or a recipe has the name of
        another algorithm.
    """
    task = settings.get("task")
    _check_kinds(contenders, task, grid, seeds, jobs)
    check_list("columns", columns)
    check_list("modules", modules)
    here = _program_here(contenders, task, modules)
    if here is not None and jobs > 1:
        raise ComparisonError(
            f"jobs={jobs}: expected 1 with a recipe or a task that is an object, whose "
            "runs are in this process."
        )
    if isinstance(task, Task | TaskEntry):
        settings = {**settings, "task": task.name}
    names = [
        each.name if isinstance(each, Recipe) else os.fspath(each)
        for each in contenders
    ]
    what = run_flags.declared(tuple(modules)) if here is None else here.what
    common = [
        f"--{name}={_text(value)}"
        for name, value in settings.items()
        if value is not None or not _is_default(name, what)
    ]
    common += [f"--module={name}" for name in modules]
    axes = [_axis(name, values) for name, values in (grid or {}).items()]
    rows = make_rows(names, common, axes, what)
    wanted = [parse_column(name) for name in columns]
    version = here.fingerprint if here else ""
    folder = folder_of(output_dir, names, common, version)
    return run(rows, modules, seeds, wanted, jobs, folder, here)


def _check_kinds(
    contenders: Sequence[Any], task: Any, grid: Any, seeds: Any, jobs: Any
) -> None:
    """Raises `ComparisonError` if an argument is of another kind than it may be."""
    for contender in contenders:
        if not isinstance(contender, str | os.PathLike | Recipe):
            raise ComparisonError(
                f"{messages.shown(contender)} is no contender: expected algorithms, "
                "flag files or folders of runs, one by one."
            )
    if not isinstance(task, str | Task | TaskEntry | None):
        raise ComparisonError(
            f"task={messages.shown(task)}: expected a name, a Task or a TaskEntry."
        )
    if not isinstance(grid, Mapping | None):
        raise ComparisonError(
            f"grid={messages.shown(grid)}: expected lists of values by setting, such as "
            '{"client_learning_rate": [0.1, 0.3]}.'
        )
    for name, value in (("seeds", seeds), ("jobs", jobs)):
        if not isinstance(value, numbers.Integral) or value < 1:
            raise ComparisonError(f"{name}={value!r}: expected an integer >= 1.")


def _program_here(
    contenders: Sequence[Any], task: Any, modules: Sequence[str]
) -> ProgramHere | None:
    """Returns what runs objects, or None if all have names only."""
    recipes = [each for each in contenders if isinstance(each, Recipe)]
    is_named = isinstance(task, str | None)
    if not recipes and is_named:
        return None
    return ProgramHere.of_objects(recipes, None if is_named else task, modules)


def _is_default(name: str, what: Declarations) -> bool:
    """Returns whether None is a setting's default, which no flag says."""
    fields = what.users.get(name, {}).values()
    if not fields:
        launch = {each.name: each.default for each in attrs.fields(Launch)}
        return name in launch and launch[name] is None
    return all(each.is_optional and not each.may_be_unset for each in fields)


def _text(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    return _line(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _line(values: Iterable[str]) -> str:
    """Returns values separated by commas; those that have some are quoted."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()


def _axis(name: str, values: Sequence[Any]) -> str:
    """Returns an axis of a grid; values with commas are quoted."""
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise ComparisonError(f"grid: {name}={values!r}, expected a list of values.")
    return f"{name}={_line(map(_text, values))}"


def run(
    rows: Sequence[Row],
    modules: Sequence[str],
    seeds: int,
    columns: Sequence[Column],
    jobs: int,
    folder: pathlib.Path,
    here: ProgramHere | None = None,
) -> Comparison:
    """Runs the rows that are not done, and reports on all.

    Args:
      rows: The rows.
      modules: Modules of other packages whose algorithms and tasks to offer.
      seeds: Every row is run with the seeds 0, 1, ...
      columns: The table's columns; () for the usual ones.
      jobs: The number of concurrent runs.
      folder: The folder of the report and of the runs.
      here: Runs them in this process; None for processes of their own.

    Raises:
      ComparisonError: If a row cannot be run, or the folder cannot be used; or, after
        all runs, if none of them has one of the columns.
      FolderInUseError: If another comparison writes to the folder.
      OutputError: If the folder cannot be written to the end.
    """
    # The checks of rows already run ops, and would take the GPU's memory from the runs.
    devices.grow_memory()
    with _held(folder):
        for note in report.notes({row: () for row in rows}):
            print(note, file=sys.stderr, flush=True)
        objects = (here.fingerprint, here.versions) if here else ()
        runs = make_runs(rows, seeds, folder, *objects)
        check_folders(runs)
        _check_results(runs)
        to_run = dict.fromkeys(run.row for run in runs if not run.is_done)
        choices = here.choices if here else plugins.load(modules)
        what = here.what if here else plugins.declare(choices)
        check_datasets(runs, checks.check(list(to_run), what, choices))
        failed, noted = [], set()
        with LiveTable(runs, redraw=here is None) as live:

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
                if here is None:
                    # With fewer runs than jobs, each gets a larger share of CPUs.
                    num_left = sum(not run.is_done for run in runs)
                    jobs = max(1, min(jobs, num_left))
                    outcomes = execute_all(
                        runs, jobs, ended, Program(jobs), live.stopping
                    )
                else:
                    outcomes = execute_in_turn(runs, ended, here)
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


def _check_results(runs: Sequence[Run]) -> None:
    """Raises `ComparisonError` if the results of a completed run cannot be read."""
    for run in runs:
        if run.is_done:
            figures.client_accuracies([read_results(run.folder)])


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
