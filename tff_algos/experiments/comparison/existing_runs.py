"""Runs that have ended, as rows of a comparison."""

import collections
import itertools
import json
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs

from tff_algos import messages
from tff_algos.experiments import run_flags
from tff_algos.experiments.comparison.errors import ComparisonError
from tff_algos.experiments.files import CONFIG_FILE, FINGERPRINT

# The flag file of a completed run of a comparison, in its folder; identifies it.
DONE_FILE = "done.flags"


def read_settings(folder: pathlib.Path) -> Mapping[str, Any]:
    """Reads the flags of a run, by name.

    Raises:
      ComparisonError: If its config.json does not hold them.
    """
    return _read_config(folder).settings


@attrs.frozen
class _Config:
    """What a run's config.json says.

    Attributes:
      settings: The run's flags.
      fingerprint: That of its data.
      command: The words of the command line that started it; () if a function did.
    """

    settings: Mapping[str, Any]
    fingerprint: str
    command: Sequence[str]


def _read_config(folder: pathlib.Path) -> _Config:
    path = folder / CONFIG_FILE
    try:
        config = json.loads(path.read_text("utf-8"))
        settings = dict(config["hyperparameters"])
        if not isinstance(settings.get("algo", ""), str):
            raise TypeError(f"algo is {messages.shown(settings['algo'])}")
        command = config.get("command")
        words = [*map(str, command)] if isinstance(command, list) else []
        return _Config(settings, str(config.get(FINGERPRINT, "")), words)
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = messages.one_line(error)
        if isinstance(error, KeyError):
            text = f"it has no {text}"
        raise ComparisonError(f"{path} cannot be read: {text}.") from error


@attrs.frozen
class _Runs:
    """Existing runs that differ in nothing but the seed."""

    folders: tuple[pathlib.Path, ...]
    algorithm: str
    task: str | None
    attack: str | None


def published(folder: pathlib.Path) -> str | None:
    """Returns what the flag file of a run says was published; None if nothing does."""
    named = run_flags.values_of("flagfile", _read_config(folder).command)
    paths = (path for path in (*map(pathlib.Path, named), folder / DONE_FILE))
    return next((first_comment(path) for path in paths if path.is_file()), None)


def first_comment(path: pathlib.Path) -> str | None:
    """Returns the comment in the first line of a flag file; None if there is none."""
    first, _, _ = path.read_text("utf-8").partition("\n")
    return first.removeprefix("#").strip() if first.startswith("#") else None


def labelled(
    folders: Sequence[pathlib.Path], taken: Collection[str]
) -> list[tuple[str, tuple[pathlib.Path, ...]]]:
    """Returns labels and folders; of runs that differ only in the seed, in one pair.

    Args:
      folders: The folders.
      taken: Labels of other rows.

    Raises:
      ComparisonError: If a run is not complete or cannot be read, or two are the same.
    """
    found = _grouped(folders)
    if len({runs.task for runs in found} - {None}) < 2:
        found = [attrs.evolve(runs, task=None) for runs in found]
    if len({runs.attack for runs in found}) < 2:
        found = [attrs.evolve(runs, attack=None) for runs in found]
    kinds = collections.Counter(map(_kind, found))
    choices = [_labels(runs, alone=kinds[_kind(runs)] == 1) for runs in found]
    held = collections.Counter(itertools.chain(taken, *map(set, choices)))
    return [
        (next((each for each in labels if held[each] == 1), labels[-1]), runs.folders)
        for runs, labels in zip(found, choices, strict=True)
    ]


def _grouped(folders: Sequence[pathlib.Path]) -> list[_Runs]:
    """Returns runs by their settings and data, but for the seed."""
    found: dict[str, _Runs] = {}
    first: dict[tuple[str, ...], pathlib.Path] = {}
    for folder in folders:
        if not (folder / "summary.json").is_file():
            raise ComparisonError(
                f"{folder} has no summary.json: its run is not complete."
            )
        config = _read_config(folder)
        settings = config.settings
        task = settings.get("dataset") or settings.get("task")
        others = {k: v for k, v in settings.items() if k != "seed"}
        data, dash, by_seed = config.fingerprint.rpartition("-")
        # Those of earlier versions do not tell what differs by seed.
        by_seed = by_seed if dash else ""
        key = json.dumps([others, data])
        other = first.setdefault((key, str(settings.get("seed")), by_seed), folder)
        if other is not folder:
            raise ComparisonError(
                f"{folder} and {other} are runs of the same settings and seed; expected "
                "one of them."
            )
        algorithm, attack = settings.get("algo", ""), settings.get("attack")
        runs = found.get(key, _Runs((), algorithm, task, attack))
        found[key] = attrs.evolve(runs, folders=(*runs.folders, folder))
    return [*found.values()]


def _kind(runs: _Runs) -> tuple[str | None, ...]:
    return runs.algorithm, runs.task, runs.attack


def _labels(runs: _Runs, *, alone: bool) -> list[str]:
    """Returns what a row of existing runs may be called, the best first.

    Args:
      runs: The runs; with a task and an attack if the label shall say them.
      alone: Whether no other row has the same algorithm, task and attack.
    """
    folders = [folder.resolve() for folder in runs.folders]
    name, within = folders[0].name, "/".join(folders[0].parts[-2:])
    stems = {re.sub(r"\+seed=\d+$", "", folder.name) for folder in folders}
    on = f" on {runs.task}" if runs.task else ""
    on += f" under {runs.attack}" if runs.attack else ""
    named = all(folder.name.startswith(runs.algorithm) for folder in folders)

    def label(text: str) -> str:
        return f"{text}{on}" if named else f"{runs.algorithm}{on} ({text})"

    found = [label(name), label(within)]
    if len(stems) == 1:
        found.insert(0, label(*stems))
    elif alone:
        found.insert(0, f"{runs.algorithm}{on} ({len(folders)} runs)")
    return found
