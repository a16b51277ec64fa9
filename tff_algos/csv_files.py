"""CSV files as people have them: any delimiter, cells of any size, named faults."""

import contextlib
import csv
import functools
import pathlib
import re
import sys
from collections.abc import Iterator

from tff_algos import messages

_DELIMITERS = ",;\t|"
# What compressed files begin with, and what to do with them. "PK" alone may begin the
# name of a column.
_COMPRESSED = {
    b"\x1f\x8b": "it is compressed (gzip): unpack it",
    b"PK\x03\x04": (
        "it is compressed (ZIP, as NPZ and XLSX files are): unpack it or save it as CSV"
    ),
}


class CsvError(ValueError):
    """A file cannot be read as CSV; the message is one line."""


def column_names(path: pathlib.Path) -> list[str]:
    """Returns what the first line says, without reading the others.

    Raises:
      CsvError: If the line cannot be read, or there is none.
    """
    with _opened(path) as rows:
        for _, cells in rows:
            return cells
    raise _empty(path)


def read(path: pathlib.Path) -> tuple[list[list[str]], list[int]]:
    """Returns the cells of each row, and the line on which the row begins.

    The first row are the columns' names. Blank lines are left out.

    Raises:
      CsvError: If the file cannot be read or is empty, or lines differ in length.
    """
    rows: list[list[str]] = []
    lines: list[int] = []
    with _opened(path) as numbered:
        for line, cells in numbered:
            if rows and len(cells) != len(rows[0]):
                raise CsvError(
                    f"{path}: line {line} has {len(cells)} cells, expected "
                    f"{len(rows[0])} as in the first line."
                )
            rows.append(cells)
            lines.append(line)
    if not rows:
        raise _empty(path)
    return rows, lines


def _empty(path: pathlib.Path) -> CsvError:
    return CsvError(f"{path} is empty.")


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """Opens a file for its rows, each with the line on which it begins.

    Cells are separated by what the first line that is not blank has most of outside
    quotes: commas, semicolons, tabs or bars.
    """
    try:
        _refuse_compressed(path)
        with (
            open(path, encoding="utf-8-sig", newline="") as file,
            _cells_of_any_size(),
        ):
            first = next(filter(str.strip, file), "")
            file.seek(0)
            delimiter = max(
                _DELIMITERS, key=functools.partial(_num_outside_quotes, first)
            )
            # Not strict, it would read rows after a stray quote as a part of a cell.
            reader = csv.reader(
                file, delimiter=delimiter, strict=True, skipinitialspace=True
            )
            yield _numbered(reader, path)
    except UnicodeDecodeError as error:
        raise CsvError(
            f"{path} cannot be read as CSV: it is not UTF-8 (it has the byte "
            f"{error.object[error.start]:#x}); save it as UTF-8."
        ) from error
    except (OSError, csv.Error) as error:
        reason = messages.one_line(error)
        raise CsvError(f"{path} cannot be read as CSV: {reason}.") from error


@contextlib.contextmanager
def _cells_of_any_size() -> Iterator[None]:
    """Lifts the limit of 131,072 characters, which long texts exceed."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _refuse_compressed(path: pathlib.Path) -> None:
    with open(path, "rb") as file:
        start = file.read(max(map(len, _COMPRESSED)))
    for signature, reason in _COMPRESSED.items():
        if start.startswith(signature):
            raise CsvError(f"{path} cannot be read as CSV: {reason}.")


def _num_outside_quotes(line: str, delimiter: str) -> int:
    # Only what begins a cell quotes it: 5" is five inches.
    before = "".join(_DELIMITERS)
    quoted = rf'(^|[{before}]) *"(?:[^"]|"")*("|$)'
    return re.sub(quoted, r"\1", line).count(delimiter)


def _numbered(reader, path: pathlib.Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the line on which each row begins, and its cells."""
    following = 1
    try:
        for cells in reader:
            # Quoted cells may have line breaks; `line_num` is where the row ends.
            line, following = following, reader.line_num + 1
            stripped = [cell.strip() for cell in cells]
            if stripped not in ([], [""]):
                yield line, stripped
    except csv.Error as error:
        raise CsvError(
            f"{path} cannot be read as CSV: line {reader.line_num}: "
            f"{messages.one_line(error)}. Cells with quotes must be enclosed in quotes, "
            'and their own quotes doubled: "5"" pipe".'
        ) from error
