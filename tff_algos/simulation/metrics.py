"""Metrics of every round: their names, and the CSV and TensorBoard files."""

import csv
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tff_algos import compat  # noqa: F401  # isort: skip

import numpy as np
import tensorflow_federated as tff

from tff_algos.simulation.checkpoints import run_coroutine

ROUND = "round"
# Parts of a learning process whose names tell a reader nothing.
_DROPPED_PREFIXES = ("client_work/", "finalizer/")


def flatten_metrics(metrics: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the scalars of a process's nested metrics by a `/`-joined name.

    "client_work/" and "finalizer/" are left off; what are no scalars, as the rows
    that clients remember, is left out.
    """
    flat = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            flat |= flatten_metrics(value, f"{prefix}{name}/")
        elif isinstance(value, (tuple, list)):
            continue
        elif isinstance(value, (str, int, float, np.generic)) or np.ndim(value) == 0:
            full = f"{prefix}{name}"
            for dropped in _DROPPED_PREFIXES:
                full = full.removeprefix(dropped)
            flat[full] = value
    return flat


class MetricsLog:
    """Writes one row per round to `metrics.csv` and `tensorboard/`.

    A row that is written again (after a resume) replaces itself and all later
    ones, which is how TFF's release managers treat a key. The CSV file is
    replaced as a whole each time, so that a kill cannot tear a row.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        directory = pathlib.Path(directory)
        self.path = directory / "metrics.csv"
        for leftover in directory.glob("metrics.csv_temp*"):
            leftover.unlink()
        self._manager = tff.program.GroupingReleaseManager(
            [
                tff.program.CSVFileReleaseManager(
                    self.path, tff.program.CSVSaveMode.WRITE, key_fieldname=ROUND
                ),
                tff.program.TensorBoardReleaseManager(directory / "tensorboard"),
            ]
        )

    def write(self, round_num: int, metrics: Mapping[str, Any]) -> None:
        """Writes the row of round `round_num`, counted from 1."""
        run_coroutine(self._manager.release(dict(metrics), key=round_num))


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Returns the rows of a metrics file: numbers where they are, no blanks."""
    with open(path, newline="") as file:
        return [
            {name: _parse(text) for name, text in row.items() if text}
            for row in csv.DictReader(file)
        ]


def _parse(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def rounds_to_target(
    rows: Sequence[Mapping[str, Any]], metric: str, targets: Sequence[float]
) -> dict[str, int | None]:
    """Returns the first evaluated round at which the metric reaches each target."""
    return {
        f"{target:g}": next(
            (row[ROUND] for row in rows if row.get(metric, -np.inf) >= target), None
        )
        for target in targets
    }
