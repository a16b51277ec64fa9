"""The rows of a comparison: what is run, each with settings that it has."""

import csv
import glob
import itertools
import os
import pathlib
import re
import types
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
from absl import flags

from tff_algos import messages, paths
from tff_algos.experiments import declarations, files, own_columns, run_flags
from tff_algos.experiments.comparison import existing_runs
from tff_algos.experiments.comparison.errors import ComparisonError, flag_error
from tff_algos.experiments.declarations import Declarations
from tff_algos.experiments.files import CONFIG_FILE
from tff_algos.hyperparameters import HyperparameterError

# Flags that compare refuses, and how the error that says so ends.
_REFUSED_FLAGS = types.MappingProxyType(
    {
        "seed": ", which runs seeds 0 to N - 1 of --seeds=N",
        "output_dir": (
            " in a flag file or --grid: each run gets a folder inside the command's "
            "--output_dir"
        ),
        "resume": (
            ", which always resumes stopped runs; choose another --output_dir to start "
            "anew"
        ),
        "list": ": use it without compare",
        "version": ": use it without compare",
    }
)
# Settings of every run that mean nothing where no clients are sampled.
_OF_COHORTS = frozenset(
    {
        "attack",
        "malicious_clients",
        "malicious_every_round",
        "client_dropout",
        "track_improvement",
    }
)
# Beside the rows of a folder of presets, or above: what they share.
_SHARED = re.compile(r"common(_.+)?\.flags")


@attrs.frozen(kw_only=True)
class Row:
    """A row of the table.

    Attributes:
      label: Its name in tables and plots.
      arguments: Its flags, but for the seed and the folder; () for existing runs.
      left_out: Settings of all rows that this one does not have.
      own_defaults: Its algorithm's own defaults on the task, as `--name=value`, where
        other rows have other values.
      folders: The folders of existing runs, one per seed; () for a row to be run.
      published: What the first line of its flag file says, for presets the published
        number or a note; None if it has no comment there.
    """

    label: str
    arguments: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    own_defaults: tuple[str, ...] = ()
    folders: tuple[pathlib.Path, ...] = ()
    published: str | None = None


@attrs.frozen(kw_only=True)
class _Settings:
    """The settings of a row that is to be run.

    Attributes:
      task: Its task.
      asked: The names of those that flags set.
      values: All, by name.
      own: The names of those that are its algorithm's own defaults on the task.
    """

    task: str
    asked: frozenset[str]
    values: Mapping[str, Any]
    own: frozenset[str]


def make_rows(
    contenders: Sequence[str],
    common: Sequence[str],
    grid: Sequence[str],
    what: Declarations,
) -> list[Row]:
    """Returns a row for each contender and point of the grid.

    A setting that an algorithm lacks is left out of its rows, so that points of the
    grid that differ in nothing else make one row.

    Args:
      contenders: Algorithms, flag files or patterns of them, and folders of runs.
      common: Flags of every row to be run, as `--name=value`.
      grid: Axes `name=value,value`.
      what: What there is to set.

    Raises:
      ComparisonError: If there is no contender or it is nothing of that, a setting is invalid or no row
        has it, or two rows have the same name.
      HyperparameterError: If a setting is invalid.
    """
    if not contenders:
        raise ComparisonError(
            "nothing to compare: name algorithms, flag files or folders of runs."
        )
    contenders = _without_shared(contenders)
    points = list(_points(grid))
    _check_names(grid, what)
    rows: dict[Row, _Settings] = {}
    folders = []
    for contender in contenders:
        is_algorithm = contender in what.algorithms
        if not is_algorithm and _has_run(contender):
            folder = pathlib.Path(contender)
            if folder.resolve() in [each.resolve() for each in folders]:
                raise ComparisonError(f"{contender} is there twice.")
            folders.append(folder)
            continue
        for (name, preset), point in itertools.product(_named(contender, what), points):
            row, settings = _row(name, preset, common, point, what)
            rows[row] = settings
    _check_used(rows, [*common, *(f"--{each}" for each in points[0])], what)
    found = [
        *_with_own_defaults(rows),
        *(
            Row(
                label=label,
                folders=paths,
                published=existing_runs.published(paths[0]),
            )
            for label, paths in existing_runs.labelled(
                folders, [row.label for row in rows]
            )
        ),
    ]
    labels = [row.label for row in found]
    for label in labels:
        if labels.count(label) > 1:
            raise ComparisonError(f"two rows are called {label!r}; expected each once.")
    return found


def _has_run(contender: str) -> bool:
    try:
        return pathlib.Path(contender, CONFIG_FILE).is_file()
    except OSError as error:
        shown = messages.shortened(contender)
        raise ComparisonError(f"{shown} cannot be read: {error.strerror}.") from error


def default_folder(
    contenders: Sequence[str], common: Sequence[str], fingerprint: str = ""
) -> pathlib.Path:
    """Returns a folder named by what rows share, so that rows and seeds can be added.

    Folders of runs alone share nothing: each set of them has a folder of its own.

    Args:
      contenders: Algorithms, flag files or patterns of them, and folders of runs.
      common: Flags of every row to be run, as `--name=value`.
      fingerprint: That of a task that is an object; "" if it is a name.
    """
    files_of_flags = [
        each for each in contenders if each.endswith(".flags") or "*" in each
    ]
    tables = {"-".join(pathlib.Path(each).parent.parts[-2:]) for each in files_of_flags}
    tasks = [each for each in common if each.startswith("--task=")]
    others = sorted({*common, *filter(None, [fingerprint])} - set(tasks))
    words = [*sorted(tables), *(each.removeprefix("--task=") for each in tasks)]
    if not words and all(map(_has_run, contenders)):
        # Existing runs share nothing; other runs must not replace their report.
        others += sorted(contenders)
    if others:
        words.append(f"{zlib.crc32(' '.join(others).encode()):08x}")
    return pathlib.Path("runs") / files.short_name("-".join(["comparison", *words]))


def folder_of(
    output_dir: str | os.PathLike[str] | None,
    contenders: Sequence[str],
    common: Sequence[str],
    fingerprint: str = "",
) -> pathlib.Path:
    """Returns where a comparison goes: `output_dir`, or that of `default_folder`.

    Raises:
      ComparisonError: If runs in `output_dir` could not be resumed.
    """
    if output_dir and paths.is_pattern(output_dir):
        raise flag_error("output_dir", output_dir, paths.NO_PATTERN)
    chosen = output_dir or default_folder(contenders, common, fingerprint)
    return pathlib.Path(os.path.expanduser(chosen))


def parse_flags(arguments: Sequence[str], what: Declarations) -> flags.FlagValues:
    """Returns a run's flags, parsed apart from those of the program.

    Raises:
      ComparisonError: If a flag is unknown or cannot be parsed; names the flag file.
    """
    values = flags.FlagValues()
    run_flags.define(what, values)
    try:
        (_, *others) = values(["compare", *arguments])
    except (flags.Error, ValueError) as error:
        reason = run_flags.reason(error, what, values, arguments)
        raise ComparisonError(reason) from error
    if others:
        where = run_flags.origin(others[0], arguments)
        raise ComparisonError(f"{where}{messages.shown(others[0])} is not a flag.")
    return values


def serialized(values: flags.FlagValues, names: Collection[str]) -> list[str]:
    """Returns flags as a command line's words, in the order of their names."""
    # A flag that is given several times has a line for each.
    return [
        word for name in sorted(names) for word in values[name].serialize().splitlines()
    ]


def _named(contender: str, what: Declarations) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields names and flags: of an algorithm, or of each flag file of a pattern."""
    if contender in what.algorithms:
        yield contender, (f"--algo={contender}",)
        return
    if not contender.endswith(".flags") and "*" not in contender:
        if pathlib.Path(contender).exists():
            raise ComparisonError(
                f"{contender} is neither an algorithm, a flag file nor the folder of a "
                "run."
            )
        if pathlib.Path(contender).name != contender:
            raise ComparisonError(
                f"there is no {contender}; expected an algorithm, a flag file or the "
                "folder of a run."
            )
        what.algorithm(contender)  # Says which is similar.
    paths = _flag_files(matching(contender))
    if not paths:
        folder = pathlib.Path(contender).parent
        names = [path.name for path in _flag_files(folder.glob("*.flags"))]
        is_shared = pathlib.Path(contender).is_file()
        there = f"{folder} has {', '.join(names) or 'none'}"
        if not folder.is_dir():
            there = f"there is no folder {folder}"
        elif is_shared and not names:
            there = f"rows are in the folders of {folder}"
        fault = "has what rows share" if is_shared else "is not a flag file"
        raise ComparisonError(f"{contender} {fault}; {there}.")
    for path in paths:
        yield path.stem, (f"--flagfile={path}",)


def _without_shared(contenders: Sequence[str]) -> list[str]:
    """Returns the contenders without those that a pattern of them leaves out.

    So a pattern that the shell expands has the same rows as a quoted one.
    """
    paths = [pathlib.Path(each) for each in contenders]
    presets = (path for path in paths if path.suffix == ".flags")
    rows = {path.parent for path in presets if not _is_shared(path)}
    return [
        contender
        for contender, path in zip(contenders, paths, strict=True)
        if not _is_shared(path) or path.parent not in rows
    ]


def _is_shared(path: pathlib.Path) -> bool:
    return _SHARED.fullmatch(path.name) is not None


def matching(pattern: str) -> list[str]:
    """Returns the files that a pattern matches; the name of a file matches that file alone."""
    return [pattern] if pathlib.Path(pattern).is_file() else glob.glob(pattern)


def _flag_files(paths: Iterable[str | pathlib.Path]) -> list[pathlib.Path]:
    files = (path for path in map(pathlib.Path, paths) if path.is_file())
    return sorted(path for path in files if not _is_shared(path))


def _points(grid: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yields every combination of the grid's values, as `name=value`."""
    axes = []
    for axis in grid:
        name, _, values = axis.partition("=")
        if not name or not values:
            raise flag_error("grid", axis, "name=value,value")
        axes.append([f"{name}={value}" for value in next(csv.reader([values]))])
    return itertools.product(*axes)


def _check_names(grid: Sequence[str], what: Declarations) -> None:
    """Raises `ComparisonError` if an axis of the grid is not a flag, or twice there."""
    known = parse_flags([], what)
    # What most algorithms have is meant most often.
    names = sorted(known, key=lambda each: -len(what.users.get(each, ())))
    axes = [axis.partition("=")[0] for axis in grid]
    for name, axis in zip(axes, grid, strict=True):
        if axes.count(name) > 1:
            raise ComparisonError(f"--grid={name}=... is there twice; expected once.")
        if name in known or name == "flagfile":
            continue
        found = declarations.nearest_names(name, names)
        meant = " or ".join(f"--{each}" for each in found)
        question = f"; did you mean {meant}?" if meant else "."
        shown, unknown = map(messages.shortened, (axis, name))
        raise ComparisonError(f"--grid={shown}: there is no --{unknown}{question}")


def _present(values: flags.FlagValues) -> list[str]:
    return [name for name in values if values[name].present and name != "flagfile"]


def _row(
    name: str,
    preset: Sequence[str],
    common: Sequence[str],
    point: Sequence[str],
    what: Declarations,
) -> tuple[Row, _Settings]:
    """Returns a row and its settings."""
    own = parse_flags(preset, what)
    of_preset = set(_present(own))
    values = parse_flags([*preset, *common, *(f"--{each}" for each in point)], what)
    present = _present(values)
    if own.algo not in (None, values.algo):
        raise ComparisonError(
            f"--algo={messages.shortened(values.algo)} cannot be used with compare for "
            f"{name}: each algorithm that is named without --algo= makes a row."
        )
    for refused, why in _REFUSED_FLAGS.items():
        if refused in present:
            where = f"{name}: " if refused in of_preset else ""
            word = messages.shortened(values[refused].serialize())
            raise ComparisonError(f"{where}{word} cannot be used with compare{why}.")
    for flag in ("algo", "task"):
        if values[flag].value is None:
            raise ComparisonError(f"--{flag} is missing for {name}.")
    algorithm, task = what.algorithm(values.algo), what.task(values.task)
    known = {*what.run, *algorithm.fields, *task.fields}
    if "clients_per_round" not in algorithm.fields:
        known -= _OF_COHORTS
    chosen = run_flags.settings_of(values, what)
    left_out = set(chosen) - known - of_preset
    settings = {key: value for key, value in chosen.items() if key not in left_out}
    declarations.check_own_data(what, values.task)
    try:
        resolved = declarations.resolve_pair(what, algorithm.name, task.name, settings)
        own_columns.check(what, values.task, resolved)
    except HyperparameterError as error:
        raise ComparisonError(f"{name}: --{error}") from error
    shown = [each for each in point if each.partition("=")[0] not in left_out]
    row = Row(
        label=" ".join([name, *shown]),
        arguments=tuple(serialized(values, set(present) - left_out)),
        left_out=tuple(sorted(left_out)),
        published=_published(preset),
    )
    of_pair = declarations.of_task(algorithm.settings, task.name)
    return row, _Settings(
        task=task.name,
        asked=frozenset(settings),
        values=resolved,
        own=frozenset(of_pair) - set(settings),
    )


def _with_own_defaults(rows: Mapping[Row, _Settings]) -> Iterator[Row]:
    """Yields rows with their algorithms' own defaults that differ in other rows."""
    for row, settings in rows.items():
        others = [each for each in rows.values() if each.task == settings.task]
        own = [
            f"--{name}={settings.values[name]}"
            for name in sorted(settings.own)
            if any(
                each.values.get(name, settings.values[name]) != settings.values[name]
                for each in others
            )
        ]
        yield attrs.evolve(row, own_defaults=tuple(own))


def _published(preset: Sequence[str]) -> str | None:
    """Returns the comment in the first line of a flag file."""
    name, _, path = preset[0].partition("=")
    if name != "--flagfile":
        return None
    return existing_runs.first_comment(pathlib.Path(path))


def _check_used(
    rows: Mapping[Row, _Settings],
    arguments: Sequence[str],
    what: Declarations,
) -> None:
    """Raises `ComparisonError` if no row has a setting that all were to have."""
    if not arguments:
        return
    asked = run_flags.settings_of(parse_flags(arguments, what), what)
    if asked and not rows:
        raise ComparisonError(
            f"--{next(iter(asked))} cannot be set: all rows are runs that have ended."
        )
    used = frozenset().union(*(settings.asked for settings in rows.values()))
    for name, value in asked.items():
        if name not in used:
            owners = ", ".join(what.users[name])
            if name in _OF_COHORTS:
                owners = "algorithms that train on clients, not on pooled data"
            raise ComparisonError(
                f"--{name}={messages.shown(value)}: no row has it; it belongs to "
                f"{owners}."
            )
