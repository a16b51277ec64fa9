"""Turns the columns of a table into features, labels and clients."""

import csv
import pathlib
from collections.abc import Iterable, Mapping

import attrs
import numpy as np

from tasks import own_arrays
from tasks.task import TaskError
from tff_algos import messages

_DELIMITERS = ",;\t|"
_MAX_SHOWN = 20
# More values than that are no category but an identity or a measurement.
_MAX_CATEGORIES = 1000


@attrs.frozen(kw_only=True)
class Roles:
    """Which column is what.

    Attributes:
      label: The classes.
      client_column: Each row's client, or None.
      features: The columns to learn from; None for all others.
      categories: Those of them whose values become features of 0 and 1.
    """

    label: str
    client_column: str | None = None
    features: tuple[str, ...] | None = None
    categories: tuple[str, ...] = ()


def read_csv(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns a CSV file's columns, text, by the names in its first line.

    Cells are separated by what the first line has most: commas, semicolons, tabs or
    bars.

    Raises:
      TaskError: If the file cannot be read, has no rows, or lines differ in length.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            delimiter = max(_DELIMITERS, key=first.count)
            rows = _rows(csv.reader(file, delimiter=delimiter), path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = messages.one_line(error)
        raise TaskError(f"{path} cannot be read as CSV: {reason}.") from error
    names, *lines = rows
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise TaskError(
            f"{path} has two columns {messages.shown(repeated[0])}; its first line must "
            "name each column once."
        )
    if not lines:
        raise TaskError(f"{path} has no rows below its first line, the columns' names.")
    return {
        name: np.array(column, dtype=np.str_)
        for name, column in zip(names, zip(*lines, strict=True), strict=True)
    }


def _rows(reader: Iterable[list[str]], path: pathlib.Path) -> list[list[str]]:
    rows: list[list[str]] = []
    for cells in reader:
        if not cells:
            continue
        if rows and len(cells) != len(rows[0]):
            raise TaskError(
                f"{path}: line {reader.line_num} has {len(cells)} cells, expected "
                f"{len(rows[0])} as in the first line."
            )
        rows.append([cell.strip() for cell in cells])
    if not rows:
        raise TaskError(f"{path} is empty.")
    return rows


def encode(
    columns: Mapping[str, np.ndarray], roles: Roles, name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Returns float64 features [n, m], labels [n], and clients [n] or None.

    Args:
      columns: The values by column.
      roles: Which column is what.
      name: The table, for messages.

    Raises:
      TaskError: If a column is not there, or has something that is not a number.
    """
    taken = [roles.label, roles.client_column]
    others = [column for column in columns if column not in taken]
    chosen = others if roles.features is None else list(roles.features)
    asked = [("label", roles.label), ("client_column", roles.client_column)]
    asked += [("features", column) for column in chosen]
    asked += [("categories", column) for column in roles.categories]
    for flag, column in asked:
        if column is not None and column not in columns:
            raise TaskError(
                f"--{flag}={messages.shortened(column)}: {name} has no such column; its "
                f"columns are: {_listed(columns)}."
            )
    for flag, used in (("features", chosen), ("categories", roles.categories)):
        for column in used:
            if column not in (others if flag == "features" else chosen):
                raise TaskError(
                    f"--{flag}={messages.shortened(column)}: expected columns out of "
                    f"{_listed(others if flag == 'features' else chosen)}."
                )
        repeated = [column for column in used if list(used).count(column) > 1]
        if repeated:
            raise TaskError(
                f"--{flag}={messages.shortened(repeated[0])}: that column is there twice."
            )
    if not chosen:
        raise TaskError(f"{name} has no column to learn from besides its label.")
    labels = columns[roles.label]
    features = [
        _categories(columns[column], column, name)
        if column in roles.categories
        else _numbers(columns[column], column, name)
        for column in chosen
    ]
    clients = None if roles.client_column is None else columns[roles.client_column]
    return np.concatenate(features, axis=1), labels, clients


def _listed(names: Iterable[str]) -> str:
    names = [messages.shortened(name, 40) for name in names]
    more = f", and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(names[:_MAX_SHOWN]) + more


def _numbers(values: np.ndarray, column: str, name: str) -> np.ndarray:
    """Returns a column of numbers as float64 [n, 1].

    Raises:
      TaskError: For the first value that is not a finite number.
    """
    if values.dtype.kind == "O":
        values = own_arrays.as_words(values)
    try:
        numbers = values.astype(np.float64)
        if values.dtype.kind in "mM":
            numbers[np.isnat(values)] = np.nan
        with np.errstate(over="ignore"):
            is_bad = ~np.isfinite(numbers.astype(np.float32))
    except ValueError:
        is_bad = np.array([not _is_number(value) for value in values])
    if is_bad.any():
        row = int(np.flatnonzero(is_bad)[0])
        found = messages.shown(str(values[row]))
        raise TaskError(
            f"{name}: column {messages.shown(column)} has {found} in row {row + 1}, "
            "expected finite numbers; --categories takes columns of words, --features "
            "the columns to learn from."
        )
    return numbers[:, np.newaxis]


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _categories(values: np.ndarray, column: str, name: str) -> np.ndarray:
    """Returns a column of words as [n, number of words], each 0 or 1."""
    if values.dtype.kind == "O":
        values = own_arrays.as_words(values)
    words, indices = np.unique(values, return_inverse=True)
    if len(words) > _MAX_CATEGORIES:
        raise TaskError(
            f"--categories={messages.shortened(column)}: {name} has {len(words)} values "
            f"in that column, expected {_MAX_CATEGORIES} or fewer."
        )
    return np.eye(len(words))[indices]
