"""The runs of a comparison: each in a process and a folder of its own, resumable."""

import concurrent.futures
import itertools
import os
import pathlib
import sys
import types
import zlib
from collections.abc import Callable, Mapping, Sequence

import attrs

from tasks import own_images
from tasks.task import TaskError
from tff_algos.experiments import files, run_folders
from tff_algos.experiments.comparison.columns import Results, read_results
from tff_algos.experiments.comparison.errors import ComparisonError
from tff_algos.experiments.comparison.existing_runs import DONE_FILE, first_comment
from tff_algos.experiments.comparison.here import ProgramHere
from tff_algos.experiments.comparison.processes import Program
from tff_algos.experiments.comparison.rows import Row

_NUM_LOG_LINES = 10
# Comments in flag files of completed runs, and what messages call them.
_DATA, _MODEL = "# data", "# initial model"
_VERSIONS = ((_DATA, "its data"), (_MODEL, "its initial model"))
LOG_FILE = "log.txt"

# The results of every row's runs; None for one that failed.
Outcomes = Mapping[Row, Sequence[Results | None]]
# Called with a run and its results, None if it failed, when it ends.
_Ended = Callable[["Run", Results | None], None]
# The next signal while running calls finish their rounds makes them end at once.
_STOP_SIGNALS = (KeyboardInterrupt, SystemExit)


@attrs.frozen
class Run:
    """One call of the command line, or an existing run.

    Attributes:
      row: Its row.
      seed: Its seed; of existing runs their number.
      folder: Its results folder.
      data_version: A comment that differs if the user's own data do.
      model_version: A comment that differs if the model to start from does.
    """

    row: Row
    seed: int
    folder: pathlib.Path
    data_version: str = ""
    model_version: str = ""

    @property
    def arguments(self) -> list[str]:
        """All flags except the folder."""
        return [*self.row.arguments, f"--seed={self.seed}"]

    @property
    def flags_text(self) -> str:
        """The arguments as a flag file, with the versions of the data and the model."""
        lines = [*self.arguments, self.data_version, self.model_version]
        return "".join(f"{line}\n" for line in lines if line)

    @property
    def is_done(self) -> bool:
        """Whether it is complete with these flags."""
        if self.row.folders:
            return True
        done = self.folder / DONE_FILE
        return (
            (self.folder / "summary.json").exists()
            and done.exists()
            and _identity(done) == self.flags_text
        )

    def write_done(self) -> None:
        """Writes that it is complete, with what a preset says was published."""
        published = self.row.published
        with files.replacing(self.folder / DONE_FILE) as file:
            file.write(f"# {published}\n" if published else "")
            file.write(self.flags_text)


def _identity(done: pathlib.Path) -> str:
    """Returns the `flags_text` of a completed run."""
    text = done.read_text("utf-8")
    return text if first_comment(done) is None else text.partition("\n")[2]


def _value_of(row: Row, flag: str) -> str:
    """Returns the value of a row's flag; "" if it has none."""
    start = f"--{flag}="
    found = (each for each in row.arguments if each.startswith(start))
    return next(found, "").removeprefix(start)


def _task_of(row: Row) -> str:
    """Returns the value of a row's `--task`; "" if it has none."""
    return _value_of(row, "task")


def _data_version(row: Row) -> str:
    """Returns a comment that differs if the user's own data do; "" for other tasks.

    Of a folder, names, sizes and times are compared, not the images.

    Raises:
      ComparisonError: If they cannot be read.
    """
    _, _, name = _task_of(row).partition(":")
    path = pathlib.Path(os.path.expanduser(name))
    try:
        if name and path.is_file():
            content = path.read_bytes()
        elif name and path.is_dir():
            stats = [(each, each.stat()) for each in own_images.visible_files(path)]
            told = [(str(each), stat.st_size, stat.st_mtime_ns) for each, stat in stats]
            content = repr(told).encode()
        else:
            return ""
    except TaskError as error:
        raise ComparisonError(str(error)) from error
    except OSError as error:
        raise ComparisonError(f"{path} cannot be read: {error.strerror}.") from error
    return f"{_DATA} {zlib.crc32(content):08x}"


def _model_version(folder: str) -> str:
    """Returns a comment that differs if the weights of `--initial_model` do.

    Args:
      folder: The flag's value; "" if it is not set.

    Raises:
      HyperparameterError: If there is no such model.
    """
    if not folder:
        return ""
    with run_folders.naming_initial_model(folder):
        path, _ = run_folders.find_weights(folder)
    return f"{_MODEL} {zlib.crc32(path.read_bytes()):08x}"


def check_folders(runs: Sequence[Run]) -> None:
    """Raises `ComparisonError` if a run's folder holds a complete run of other flags."""
    for run in runs:
        done = run.folder / DONE_FILE
        if run.row.folders or not done.exists() or _identity(done) == run.flags_text:
            continue
        before = set(_identity(done).splitlines())
        differing = sorted(
            next((told for start, told in _VERSIONS if each.startswith(start)), each)
            for each in before - set(run.flags_text.splitlines())
        )
        raise ComparisonError(
            f"{run.folder} holds another run ({', '.join(differing) or 'fewer flags'}); "
            "choose another --output_dir."
        )


def check_datasets(runs: Sequence[Run], datasets: Mapping[Row, str]) -> None:
    """Raises `ComparisonError` if completed runs of a task are on another dataset.

    With --data=auto, the real dataset takes the place of generated data once it is in
    the cache folder.

    Args:
      runs: All runs.
      datasets: The name of the dataset of each row that is to be run.
    """
    by_task = {_task_flags(row): name for row, name in datasets.items()}
    for run in runs:
        now = by_task.get(_task_flags(run.row))
        if now is None or run.row.folders or not run.is_done:
            continue
        before = read_results(run.folder).dataset
        if before not in (None, now):
            raise ComparisonError(
                f"{run.folder} holds a run on {before}, but further runs would now be on "
                f"{now}: choose another --output_dir."
            )


def _task_flags(row: Row) -> tuple[str, ...]:
    """Returns the flags that say which dataset a row has."""
    names = ("--task=", "--data=", "--cache_dir=")
    return tuple(each for each in row.arguments if each.startswith(names))


def _folder_name(row: Row, seed: int, versions: Mapping[str, str]) -> str:
    """Returns the name of a run's folder, of at most 255 bytes."""
    # A value may be a list of columns.
    name = files.short_name(row.label.replace(" ", "+"))
    used = (versions.get(each.removeprefix("--algo=")) for each in row.arguments)
    return "-".join([name, *filter(None, used)]) + f"+seed={seed}"


def make_runs(
    rows: Sequence[Row],
    seeds: int,
    output_dir: pathlib.Path,
    fingerprint: str = "",
    versions: Mapping[str, str] = types.MappingProxyType({}),
) -> list[Run]:
    """Returns the runs, seed by seed, so that all rows have results early.

    Args:
      rows: The rows.
      seeds: The number of seeds of rows that are to be run: 0, 1, ...
      output_dir: Where each run gets a folder.
      fingerprint: That of a task that is an object; "" if it is a name.
      versions: Of algorithms that are objects, by name. Runs of another version have
        other folders.
    """
    runs = []
    loaded = f"{_DATA} {fingerprint}" if fingerprint else ""
    # A task entry may read a file, which its name tells; read once for all rows.
    of_task = {_task_of(row): row for row in rows}
    versions_of_files = {task: _data_version(row) for task, row in of_task.items()}
    folders = {row: _value_of(row, "initial_model") for row in rows}
    models = {folder: _model_version(folder) for folder in {*folders.values()}}
    data_versions = {
        row: " ".join(filter(None, (loaded, versions_of_files[_task_of(row)])))
        for row in rows
    }
    for seed, row in itertools.product(range(seeds), rows):
        if not row.folders:
            folder = output_dir / _folder_name(row, seed, versions)
            model_version = models[folders[row]]
            runs.append(Run(row, seed, folder, data_versions[row], model_version))
    for row in rows:
        runs += [Run(row, number, path) for number, path in enumerate(row.folders)]
    return runs


def execute(run: Run, program: Program | ProgramHere) -> Results | None:
    """Runs the command line, unless the run is done; returns None if it fails.

    If the folder has a run with other flags, the command line resumes it or fails.
    """
    if not run.is_done:
        run.folder.mkdir(parents=True, exist_ok=True)
        log = run.folder / LOG_FILE
        if program([*run.arguments, f"--output_dir={run.folder}"], log):
            return None
        run.write_done()
    return read_results(run.folder)


def tell_failure(run: Run) -> None:
    """Prints how the log of a failed run ends."""
    log = run.folder / LOG_FILE
    # Not read as text: each update of a progress line would become a line.
    written = log.read_bytes().decode(errors="replace").split("\n")
    lines = [line.rpartition("\r")[2] for line in written]
    last = [f"    {line}" for line in lines if line.strip()][-_NUM_LOG_LINES:]
    title = f"{run.row.label}, seed {run.seed}: failed, {log} ends:"
    print("\n".join([title, *last]), file=sys.stderr, flush=True)


def execute_all(
    runs: Sequence[Run],
    jobs: int,
    ended: _Ended,
    program: Program,
    stopping: Callable[[], None] = lambda: None,
) -> Outcomes:
    """Executes runs, `jobs` at a time, and returns the results of every row.

    Args:
      runs: The runs.
      jobs: The number of concurrent runs.
      ended: Called when a run ends. If it raises, the other runs are stopped.
      program: Calls the command line.
      stopping: Called when a signal asks to stop, before the running calls finish their
        rounds. At the next signal they end at once.
    """
    with concurrent.futures.ThreadPoolExecutor(jobs) as executor:
        try:
            futures = {executor.submit(execute, run, program): run for run in runs}
            for future in concurrent.futures.as_completed(futures):
                ended(futures[future], future.result())
        except BaseException as error:
            executor.shutdown(wait=False, cancel_futures=True)
            program.stop()
            if isinstance(error, _STOP_SIGNALS):
                stopping()
            _wait(executor, program)
            raise
    return _by_row({run: future.result() for future, run in futures.items()})


def _wait(executor: concurrent.futures.ThreadPoolExecutor, program: Program) -> None:
    """Waits for the running calls, which a signal meanwhile stops a second time."""
    while True:
        try:
            return executor.shutdown(wait=True)
        except _STOP_SIGNALS:
            program.stop()


def execute_in_turn(
    runs: Sequence[Run], ended: _Ended, program: ProgramHere
) -> Outcomes:
    """Executes runs in the calling thread and returns the results of every row.

    Args:
      runs: The runs.
      ended: Called when a run ends.
      program: Does what the command line does.
    """
    results = {}
    for run in runs:
        results[run] = execute(run, program)
        ended(run, results[run])
    return _by_row(results)


def _by_row(results: Mapping[Run, Results | None]) -> Outcomes:
    outcomes: dict[Row, list[Results | None]] = {run.row: [] for run in results}
    for run, found in results.items():
        outcomes[run.row].append(found)
    return outcomes
