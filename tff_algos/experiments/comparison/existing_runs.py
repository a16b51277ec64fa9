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
from tff_algos.experiments.comparison.errors import ComparisonError
from tff_algos.experiments.files import CONFIG_FILE, FINGERPRINT


def read_settings(folder: pathlib.Path) -> Mapping[str, Any]:
    """Reads the flags of a run, by name.

    Raises:
      ComparisonError: If its config.json does not hold them.
    """
    settings, _ = _read_config(folder)
    return settings


def _read_config(folder: pathlib.Path) -> tuple[Mapping[str, Any], str]:
    """Returns the flags of a run, and the fingerprint of its data."""
    path = folder / CONFIG_FILE
    try:
        config = json.loads(path.read_text("utf-8"))
        settings = dict(config["hyperparameters"])
        if not isinstance(settings.get("algo", ""), str):
            raise TypeError(f"algo is {messages.shown(settings['algo'])}")
        return settings, str(config.get(FINGERPRINT, ""))
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
    one_task = len({runs.task for runs in found} - {None}) < 2
    kinds = collections.Counter((runs.algorithm, runs.task) for runs in found)
    choices = [
        _labels(
            attrs.evolve(runs, task=None) if one_task else runs,
            alone=kinds[runs.algorithm, runs.task] == 1,
        )
        for runs in found
    ]
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
        settings, fingerprint = _read_config(folder)
        task = settings.get("dataset") or settings.get("task")
        others = {k: v for k, v in settings.items() if k != "seed"}
        data, dash, by_seed = fingerprint.rpartition("-")
        # Those of earlier versions do not tell what differs by seed.
        by_seed = by_seed if dash else ""
        key = json.dumps([others, data])
        other = first.setdefault((key, str(settings.get("seed")), by_seed), folder)
        if other is not folder:
            raise ComparisonError(
                f"{folder} and {other} are runs of the same settings and seed; expected "
                "one of them."
            )
        runs = found.get(key, _Runs((), settings.get("algo", ""), task))
        found[key] = attrs.evolve(runs, folders=(*runs.folders, folder))
    return [*found.values()]


def _labels(runs: _Runs, *, alone: bool) -> list[str]:
    """Returns what a row of existing runs may be called, the best first.

    Args:
      runs: The runs; with a task if the label shall say it.
      alone: Whether no other row has the same algorithm and task.
    """
    folders = [folder.resolve() for folder in runs.folders]
    name, within = folders[0].name, "/".join(folders[0].parts[-2:])
    stems = {re.sub(r"\+seed=\d+$", "", folder.name) for folder in folders}
    on = f" on {runs.task}" if runs.task else ""
    named = all(folder.name.startswith(runs.algorithm) for folder in folders)

    def label(text: str) -> str:
        return f"{text}{on}" if named else f"{runs.algorithm}{on} ({text})"

    found = [label(name), label(within)]
    if len(stems) == 1:
        found.insert(0, label(*stems))
    elif alone:
        found.insert(0, f"{runs.algorithm}{on} ({len(folders)} runs)")
    return found
