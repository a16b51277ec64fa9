"""Verifies that the SQLite file of a TFF dataset is complete and not corrupt."""

import contextlib
import json
import os
import pathlib
import sqlite3
import struct
import tempfile
import types

from absl import logging

from tasks.task import TaskError
from tff_algos import messages

# Tables and their columns.
_REQUIRED = types.MappingProxyType(
    {
        "client_metadata": ("client_id", "split_name"),
        "examples": ("client_id", "split_name", "serialized_example_proto"),
    }
)

_MAGIC = b"SQLite format 3\x00"
_HEADER_SIZE = 100
# Files verified by an earlier version of the checks are checked again.
_CHECKS_VERSION = 2


def verify(path: str) -> None:
    """Checks that a file is a complete SQLite database of federated examples.

    The size is checked every time. The content is checked once per file: a stamp file
    (`PATH.verified`) records the size and modification time; if it cannot be written,
    the content is checked every time.

    Args:
      path: The file.

    Raises:
      TaskError: If the file is missing, unreadable, truncated or corrupt, or lacks a
        table; the message names the file and the remedy.
    """
    try:
        problem = _find_size_problem(path)
        if problem is None and not is_remembered(path):
            logging.info("Checking %s (once per file).", path)
            problem = _find_content_problem(path)
            if problem is None:
                remember(path)
    except FileNotFoundError:
        raise TaskError(
            f"{path} does not exist: --data=tff downloads it, or put it there."
        ) from None
    except OSError as error:
        raise TaskError(
            f"{path} cannot be read ({error.strerror}): make it readable, name "
            "another folder with --cache_dir, or use --data=generated."
        ) from error
    if problem is not None:
        raise TaskError(
            f"{path} is not a whole dataset file ({problem}): delete it, then "
            "--data=tff downloads it again; --data=generated needs no download."
        )


def find_problem(path: str) -> str | None:
    """Returns a problem with the file's size or content, or None."""
    return _find_size_problem(path) or _find_content_problem(path)


def is_remembered(path: str) -> bool:
    """Returns whether the file, by size and modification time, was verified before."""
    try:
        with open(stamp_path(path), encoding="utf-8") as file:
            return json.load(file) == _stamp(path)
    except (OSError, ValueError):
        return False


def remember(path: str) -> None:
    """Records that the file was verified; does nothing in a read-only folder."""
    try:
        descriptor, partial = tempfile.mkstemp(
            prefix=os.path.basename(path) + ".",
            suffix=".verified.partial",
            dir=os.path.dirname(path) or ".",
        )
    except OSError:
        return
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(_stamp(path), file)
        # Other users of a shared cache need not check the file again.
        os.chmod(partial, 0o644)
        os.replace(partial, stamp_path(path))
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(partial)


def stamp_path(path: str) -> str:
    """Returns the path of the stamp file of `path`."""
    return path + ".verified"


def _stamp(path: str) -> dict[str, int]:
    status = os.stat(path)
    return {
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "checks": _CHECKS_VERSION,
    }


def _find_size_problem(path: str) -> str | None:
    with open(path, "rb") as file:
        header = file.read(_HEADER_SIZE)
        size = os.fstat(file.fileno()).st_size
    if len(header) < _HEADER_SIZE:
        return f"truncated to {size} bytes"
    if not header.startswith(_MAGIC):
        return "no SQLite header"
    (page_size,) = struct.unpack(">H", header[16:18])
    page_size = 65536 if page_size == 1 else page_size
    change_counter, num_pages = struct.unpack(">II", header[24:32])
    (valid_for,) = struct.unpack(">I", header[92:96])
    # The page count is valid only if these two counters agree.
    if change_counter == valid_for and size < num_pages * page_size:
        return f"truncated, {size} of {num_pages * page_size} bytes are there"
    return None


def _find_content_problem(path: str) -> str | None:
    # Immutable mode needs neither locks nor a writable folder.
    uri = pathlib.Path(path).absolute().as_uri() + "?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                return " ".join(verdict.split())
            return _find_schema_problem(connection) or _find_id_problem(connection)
    # UnicodeDecodeError: SQLite's message quotes damaged content.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return messages.one_line(error)


def _find_schema_problem(connection: sqlite3.Connection) -> str | None:
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    tables = {name for (name,) in connection.execute(query)}
    missing = [table for table in _REQUIRED if table not in tables]
    if missing:
        return f"no table {', '.join(missing)}"
    for table, required in _REQUIRED.items():
        rows = connection.execute(f"PRAGMA table_info({table})")
        columns = {name for _, name, *_ in rows}
        missing = [column for column in required if column not in columns]
        if missing:
            return f"its table {table} has no column {', '.join(missing)}"
    return None


def _find_id_problem(connection: sqlite3.Connection) -> str | None:
    """Returns a problem with client ids that TFF cannot look up, or None."""
    for table in _REQUIRED:
        (found,) = connection.execute(
            f"SELECT MIN(typeof(client_id)) FROM {table} "
            "WHERE typeof(client_id) <> 'text'"
        ).fetchone()
        if found is not None:
            return f"its table {table} has a client_id that is {found}, not text"
    # Read to the end: an id that is not UTF-8 raises.
    for (client_id,) in connection.execute("SELECT client_id FROM client_metadata"):
        # TFF quotes ids in its queries without escaping them.
        if "'" in client_id:
            return f"the client_id {messages.shown(client_id)} has a quote"
    return None
