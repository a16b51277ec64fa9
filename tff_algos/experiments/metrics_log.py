"""Metrics of every round: the CSV and TensorBoard files."""

import csv
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_algos.experiments import files
from tff_algos.experiments.checkpoints import run_coroutine
from tff_algos.experiments.errors import ResumeError
from tff_algos.experiments.metric_names import ROUND

_NUM_EXAMPLES = "num_examples"
# Name prefixes of a learning process's parts that do not help a reader.
_DROPPED_PREFIXES = ("client_work/", "finalizer/")


def flatten_metrics(metrics: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the scalars of a process's nested metrics by `/`-joined name.

    The prefixes "client_work/" and "finalizer/" are dropped, and so are non-scalars
    such as the rows that clients remember.
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


def without_empty_means(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns metrics with means over zero examples replaced by NaN.

    If no client reports, a model's metrics finalize to 0, which looks like the best
    possible loss.

    Args:
      metrics: Metrics by flat name; means beside a `num_examples` of 0 are undefined.
    """
    empty = {
        name.removesuffix(_NUM_EXAMPLES)
        for name, value in metrics.items()
        if name.endswith(f"/{_NUM_EXAMPLES}") and value == 0
    }

    def is_mean(name: str, value: Any) -> bool:
        group = name[: name.rfind("/") + 1]
        return group in empty and np.asarray(value).dtype.kind == "f"

    return {n: math.nan if is_mean(n, v) else v for n, v in metrics.items()}


class _CSVFile(tff.program.CSVFileReleaseManager):
    """Appends rows to a file without reading it.

    TFF's reads and writes the whole file twice for every row, which takes minutes in
    runs of thousands of rounds.
    """

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__(path, tff.program.CSVSaveMode.APPEND, key_fieldname=ROUND)

    async def _remove_values_greater_than_key(self, key: int) -> None:
        if self._latest_key is not None and key < self._latest_key:
            await super()._remove_values_greater_than_key(key)


class MetricsLog:
    """Writes one row per round to `metrics.csv` and `tensorboard/`.

    Writing an existing row again (after a resume) replaces it and all later rows, like
    a key in TFF's release managers.
    """

    def __init__(
        self, directory: str | os.PathLike[str], required: Sequence[str] = ()
    ) -> None:
        """Opens the log and checks the existing rows.

        Args:
          directory: The results folder.
          required: Columns besides `round` in which every row must have a number.

        Raises:
          ResumeError: If `metrics.csv` was not written by this class.
        """
        directory = pathlib.Path(directory)
        self.path = directory / "metrics.csv"
        self._required = required
        for leftover in files.partial_writes(self.path):
            files.remove(leftover)
        if self.path.exists():
            self.rows()
        self._manager = tff.program.GroupingReleaseManager(
            [
                _CSVFile(self.path),
                tff.program.TensorBoardReleaseManager(directory / "tensorboard"),
            ]
        )

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows; see `read_rows`."""
        return read_rows(self.path, self._required)

    def write(self, round_num: int, metrics: Mapping[str, Any]) -> None:
        """Writes the row of round `round_num`, counted from 1."""
        run_coroutine(self._manager.release(dict(metrics), key=round_num))


def remove_unfinished_row(path: pathlib.Path) -> None:
    """Removes what follows the last end of a line: a row that a killed run left."""
    written = path.read_bytes()
    end = written.rfind(b"\n") + 1
    if end < len(written):
        with files.replacing_bytes(path) as file:
            # Of a single line, which is the header, only the end is missing.
            file.write(written[:end] or written + b"\n")


def read_rows(
    path: str | os.PathLike[str], required: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Returns the rows of a metrics file, with parsed numbers and without blanks.

    A blank means that a metric was not measured in the round; `nan` means that it has
    no value, as a mean over nothing or after an overflow.

    Args:
      path: The file.
      required: Columns besides `round` in which every row must have a number.

    Raises:
      ResumeError: If the file is not such a table, or a row's length differs from the
        header's, a required number is missing, or rounds are not in order. The message
        names the line.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return _parse_rows(csv.reader(file), required)
    except (ValueError, csv.Error) as error:
        raise ResumeError(
            f"{path} cannot be read: {error}. Repair it, or move it away to "
            "continue without its rows."
        ) from error


def _parse_rows(reader: Any, required: Sequence[str]) -> list[dict[str, Any]]:
    header = next(reader, [])
    if ROUND not in header or len(set(header)) < len(header):
        raise ValueError(f"line 1 must name each column once, {ROUND!r} among them")
    rows: list[dict[str, Any]] = []
    for cells in filter(None, reader):
        row = {
            name: _parse(text)
            for name, text in zip(header, cells, strict=False)
            if text
        }
        if len(cells) != len(header):
            fault = f"has {len(cells)} values for {len(header)} columns"
        else:
            fault = _fault(row, rows[-1][ROUND] if rows else 0, required)
        if fault is not None:
            raise ValueError(f"line {reader.line_num} {fault}")
        rows.append(row)
    return rows


def _fault(
    row: Mapping[str, Any], last_round: int, required: Sequence[str]
) -> str | None:
    """Returns why a row is invalid after the row of `last_round`, or None."""
    round_num = row.get(ROUND)
    if not isinstance(round_num, int) or round_num < 1:
        return f"has no whole number above 0 in column {ROUND!r}"
    if round_num <= last_round:
        return f"is of round {round_num}, after that of round {last_round}"
    for name in required:
        if not isinstance(row.get(name), (int, float)):
            return f"(round {round_num}) has no number in column {name!r}"
    return None


def describe_missing(
    rows: Sequence[Mapping[str, Any]], rounds_done: int, total_rounds: int
) -> str | None:
    """Returns which completed rounds have no row, as a text; None if all have one.

    Args:
      rows: The rows of `metrics.csv`.
      rounds_done: The number of completed rounds, which are not run again.
      total_rounds: The last round.
    """
    present = [row[ROUND] for row in rows]
    missing = sorted(set(range(1, rounds_done + 1)) - set(present))
    if not missing:
        return None
    shown = f"round {missing[0]}"
    if len(missing) > 1:
        between = "-" if missing[-1] - missing[0] < len(missing) else ", ..., "
        shown = f"rounds {missing[0]}{between}{missing[-1]}"
    first = min([*present, rounds_done + 1])
    begins = "is empty" if first > total_rounds else f"begins with round {first}"
    return f"has no row of {shown}, done before and not run again: it {begins}."


def describe_repeated(
    rows: Sequence[Mapping[str, Any]], rounds_done: int
) -> str | None:
    """Returns which rounds with rows run again, as a text; None if none do.

    Args:
      rows: The rows of `metrics.csv`.
      rounds_done: The number of completed rounds that a checkpoint has; 0 without one.
    """
    last = rows[-1][ROUND] if rows else 0
    if last <= rounds_done:
        return None
    checkpoint = "there is no checkpoint"
    if rounds_done:
        checkpoint = f"the last checkpoint is that of round {rounds_done}"
    again = f"rounds {rounds_done + 1}-{last} run"
    if last == rounds_done + 1:
        again = f"round {last} runs"
    return f"ends with round {last}, but {checkpoint}: {again} again."


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
    """Returns the first evaluated round in which the metric reaches each target.

    Metrics are float32, in which 0.9 is a little less than in Python: they are compared
    as float32.
    """
    return {
        f"{target:g}": next(
            (
                row[ROUND]
                for row in rows
                if np.float32(row.get(metric, -np.inf)) >= np.float32(target)
            ),
            None,
        )
        for target in targets
    }
