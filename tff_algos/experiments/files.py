"""Atomic file writes and JSON output, and TensorFlow's writes without its log."""

import contextlib
import glob
import json
import logging
import math
import os
import pathlib
import re
import secrets
import shutil
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any, BinaryIO, TextIO

import numpy as np

# The settings of a run, in its results folder.
CONFIG_FILE = "config.json"
# In it, the fingerprint of the task's data.
FINGERPRINT = "data_fingerprint"

_MAX_NAME_BYTES = 200


def safe_name(text: str) -> str:
    """Returns a text as the name of one file or folder."""
    return re.sub(r"[^\w.,=+-]", "_", text)


def short_name(text: str) -> str:
    """Returns `safe_name(text)`; of a long text its beginning and a checksum."""
    name = safe_name(text)
    if len(name.encode()) <= _MAX_NAME_BYTES:
        return name
    start = name.encode()[:_MAX_NAME_BYTES].decode(errors="ignore")
    return f"{start}-{zlib.crc32(text.encode()):08x}"


def temporary_path(path: pathlib.Path) -> pathlib.Path:
    """Returns a new name beside `path`, for a file or folder that will replace it.

    Unlike `tempfile`'s, what is created there has the permissions of other new files.
    """
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Opens a UTF-8 file that replaces `path` once it is completely written."""
    with _replacing(path, "x", newline="", encoding="utf-8") as file:
        yield file


@contextlib.contextmanager
def replacing_bytes(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a binary file that replaces `path` once it is completely written."""
    with _replacing(path, "xb") as file:
        yield file


@contextlib.contextmanager
def _replacing(path: str | os.PathLike[str], mode: str, **how: Any) -> Iterator[IO]:
    path = pathlib.Path(path)
    temporary = temporary_path(path)
    with open(temporary, mode, **how) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink()
            raise


@contextlib.contextmanager
def without_log() -> Iterator[None]:
    """Keeps TensorFlow from logging where it saves.

    In notebooks, TensorFlow prints its log from the level "info" on.
    """
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)


def partial_writes(path: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files left by interrupted writes of `path`, by `replacing` or TFF."""
    name = glob.escape(path.name)
    # The random part of `temporary_path` has eight characters.
    patterns = (f".{name}.{'?' * 8}", f"{name}_temp*")
    return [found for pattern in patterns for found in path.parent.glob(pattern)]


def remove(path: pathlib.Path) -> None:
    """Removes a file, a folder, or a symbolic link (but not its target)."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def to_plain(value: Any) -> Any:
    """Converts a value for JSON, which has neither NumPy's types nor NaN.

    Args:
      value: Mappings and sequences of Python and NumPy values.

    Returns:
      The value in Python's types, with None in place of NaN and infinities.
    """
    if isinstance(value, Mapping):
        return {key: to_plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(inner) for inner in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return to_plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_json(value: Any) -> str:
    """Returns `value` as indented JSON; null for NaN and infinities.

    Raises:
      TypeError: If it contains a type that JSON does not have.
    """
    return json.dumps(to_plain(value), indent=2, allow_nan=False)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `to_json(value)` atomically."""
    text = to_json(value)
    with replacing(path) as file:
        file.write(f"{text}\n")
