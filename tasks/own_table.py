"""Turns the columns of a table into features, labels and clients."""

import collections
import datetime
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from tasks import own_arrays
from tasks.task import TaskError
from tff_algos import column_roles, csv_files, messages
from tff_algos.column_roles import Roles
from tff_algos.hyperparameters import HyperparameterError

# More values than that are no category but an identity or a measurement.
_MAX_CATEGORIES = 1000
# The words that pandas reads as missing values in a CSV file.
_MISSING = (
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND"),
    *("1.#QNAN", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
_TIMES = (datetime.date, datetime.time, datetime.timedelta)
# What a column should have instead, by the kind of its NumPy type.
_DAYS = "numbers: replace it by numbers, such as days"
_EXPECTED = {
    "m": _DAYS,
    "M": _DAYS,
    "c": "real numbers: replace it by real numbers, such as absolute values",
}


class _TextColumns(Mapping[str, np.ndarray]):
    """Columns of text, made arrays when they are asked for.

    All cells of an array take the memory of the longest, so a column that nobody asks
    for, such as one of long notes, must not become one.
    """

    def __init__(self, cells: Mapping[str, Sequence[str]]) -> None:
        self._cells = cells
        self._arrays: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = np.array(self._cells[name], dtype=np.str_)
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    # Mapping's own makes the array.
    def __contains__(self, name: object) -> bool:
        return name in self._cells


@attrs.frozen(kw_only=True, eq=False)
class Table:
    """A table, and how messages refer to its parts.

    Attributes:
      name: The file, or the name of the data.
      columns: The values by column.
      lines: The line of the file on which each row begins; None for a table that comes
        from Python.
    """

    name: str
    columns: Mapping[str, np.ndarray]
    lines: Sequence[int] | None = None

    def place(self, row: int) -> str:
        """Returns where an editor, or Python, shows a row."""
        if self.lines is None:
            return f"row {row} (counting from 0)"
        return f"line {self.lines[row]}"

    def option(self, name: str) -> str:
        """Returns how an option is written."""
        return f"{name}=" if self.lines is None else f"--{name}"

    def is_missing(self, column: str) -> np.ndarray:
        """Returns which values of a column are missing."""
        values = self.columns[column]
        if self.lines is not None:
            return np.isin(values, ("", *_MISSING))
        return own_arrays.is_missing(values)


def read_csv(path: pathlib.Path) -> Table:
    """Returns a CSV file's columns, text, by the names in its first line.

    Raises:
      TaskError: If the file cannot be read, has no rows, or lines differ in length.
    """
    try:
        rows, lines = csv_files.read(path)
    except csv_files.CsvError as error:
        raise TaskError(str(error)) from error
    header, *cells = rows
    counts = collections.Counter(header)
    # Columns without a name may stay, if nothing is learned from them.
    repeated = [name for name in header if counts[name] > 1 and name]
    if repeated:
        raise TaskError(
            f"{path} has two columns {messages.shown(repeated[0])}; its first line must "
            "name each column once."
        )
    if not cells:
        raise TaskError(f"{path} has no rows below its first line, the columns' names.")
    columns = _TextColumns(dict(zip(header, zip(*cells, strict=True), strict=True)))
    return Table(name=str(path), columns=columns, lines=lines[1:])


def encode(
    table: Table, roles: Roles
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Returns float64 features [n, m], labels [n], and clients [n] or None.

    Args:
      table: The table.
      roles: Which column is what.

    Raises:
      TaskError: If a value is missing, something is not a number or no class, or a
        column to learn from has no name.
      HyperparameterError: If a column is not there.
    """
    chosen = _chosen(table, roles)
    if not len(table.columns[roles.label]):
        raise TaskError(f"{table.name} has no examples.")
    _refuse_missing(table, roles.label)
    labels = own_arrays.whole_numbers_or_words(
        table.columns[roles.label], table.name, table.place
    )
    clients = None
    if roles.client_column is not None:
        _refuse_missing(table, roles.client_column)
        clients = table.columns[roles.client_column]
    features = [
        _categories(table, column)
        if column in roles.categories
        else _numbers(table, column)
        for column in chosen
    ]
    return np.concatenate(features, axis=1), labels, clients


def feature_names(table: Table, roles: Roles) -> list[str]:
    """Returns what `encode` makes its features of, in order: columns, and their words.

    The feature that is 1 where a column of `categories` has a word is "column=word".
    """
    found: list[str] = []
    for column in _chosen(table, roles):
        if column in roles.categories:
            words, _ = _words(table, column)
            found += [f"{column}={word}" for word in words]
        else:
            found.append(column)
    return found


def _chosen(table: Table, roles: Roles) -> list[str]:
    """Returns the columns to learn from."""
    chosen = column_roles.chosen(roles, table.columns, table.name)
    if not chosen:
        raise TaskError(f"{table.name} has no column to learn from besides its label.")
    if "" in chosen:
        _refuse_nameless(table)
    return chosen


def _refuse_nameless(table: Table) -> None:
    number = list(table.columns).index("") + 1
    why, remedy = "", "name it"
    if number == 1:
        why = " (pandas writes its index there)"
        remedy = "name it, save with index=False,"
    raise TaskError(
        f"{table.name}: column {number} has no name{why}: {remedy} or choose "
        f"{table.option('features')}."
    )


def _refuse_missing(table: Table, column: str) -> None:
    rows = np.flatnonzero(table.is_missing(column))
    if not len(rows):
        return
    text = str(table.columns[column][rows[0]])
    found = f"has {messages.shown(text)}, a missing value," if text else "is empty"
    raise TaskError(
        f"{table.name}: column {messages.shown(column)} {found} in "
        f"{table.place(rows[0])}: fill it in or remove the row."
    )


def _numbers(table: Table, column: str) -> np.ndarray:
    """Returns a column of numbers as float64 [n, 1].

    Raises:
      TaskError: For the first value that is not a finite number, and for times and
        complex numbers.
    """
    values = table.columns[column]
    found, expected = _type_and_expected(values)
    if expected:
        raise TaskError(
            f"{table.name}: column {messages.shown(column)} is of type {found}, "
            f"expected {expected}, or name the columns to learn from in "
            f"{table.option('features')}."
        )
    if values.dtype.kind in "OS":
        values = own_arrays.as_words(values)
    try:
        numbers = values.astype(np.float64)
        with np.errstate(over="ignore"):
            is_bad = ~np.isfinite(numbers.astype(np.float32))
        if values.dtype.kind == "U":
            is_bad |= np.char.find(values, "_") >= 0
    except ValueError:
        is_bad = np.array([not np.isfinite(_number(value)) for value in values])
    bad = np.flatnonzero(is_bad & ~table.is_missing(column))
    if len(bad):
        text = str(values[bad[0]])
        raise TaskError(
            f"{table.name}: column {messages.shown(column)} has {messages.shown(text)} "
            f"in {table.place(bad[0])}, expected finite numbers{_advice(table, text)}."
        )
    _refuse_missing(table, column)
    return numbers[:, np.newaxis]


def _type_and_expected(values: np.ndarray) -> tuple[str, str]:
    """Returns values' type and, if they cannot be numbers, what should replace them."""
    if values.dtype.kind == "O":
        # As pandas gives times with a time zone.
        times = [type(each).__name__ for each in values if isinstance(each, _TIMES)]
        return (times[0], _DAYS) if times else ("object", "")
    return str(values.dtype), _EXPECTED.get(values.dtype.kind, "")


def _advice(table: Table, text: str) -> str:
    """Says how to write a number, or which options take a column of words.

    Nothing if the text is a number.
    """
    if not np.isnan(_number(text)):
        return ""
    if _has_number_with_commas(text):
        return "; write decimals with a point and no thousands separators"
    return (
        f"; {table.option('categories')} takes columns of words, "
        f"{table.option('client_column')} the one that names clients, "
        f"{table.option('features')} the columns to learn from"
    )


def _has_number_with_commas(text: str) -> bool:
    """Returns whether a text is like 22,66 or 1,234.5 or 1.234,5."""
    readings = (text.replace(",", ""), text.replace(".", "").replace(",", "."))
    return "," in text and not np.isnan([_number(each) for each in readings]).all()


def _number(text: str) -> float:
    # Python reads 2023_04, a month or a code, as 202304.
    if "_" in text:
        return np.nan
    try:
        return float(text)
    except ValueError:
        return np.nan


def _categories(table: Table, column: str) -> np.ndarray:
    """Returns a column of words as [n, number of words], each 0 or 1."""
    words, indices = _words(table, column)
    if len(words) > _MAX_CATEGORIES:
        raise HyperparameterError(
            "categories",
            column,
            f"columns of {_MAX_CATEGORIES} values or fewer; {table.name} has "
            f"{len(words)} in that one",
        )
    return np.eye(len(words))[indices]


def _words(table: Table, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a column's words, sorted, and each row's index among them."""
    values = table.columns[column]
    if values.dtype.kind in "OS":
        values = own_arrays.as_words(values)
    return np.unique(values, return_inverse=True)
