"""Files that are either old or new, never half written."""

import contextlib
import glob
import json
import math
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

import numpy as np


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Opens a text file that takes the place of `path` once it is written whole."""
    path = pathlib.Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def partial_writes(path: pathlib.Path) -> list[pathlib.Path]:
    """Returns what interrupted writes of `path` left: by `replacing`, or by TFF."""
    name = glob.escape(path.name)
    # mkstemp's random part has eight characters.
    patterns = (f".{name}.{'?' * 8}", f"{name}_temp*")
    return [found for pattern in patterns for found in path.parent.glob(pattern)]


def remove(path: pathlib.Path) -> None:
    """Removes a file, a folder, or a symbolic link but not what it points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def to_plain(value: Any) -> Any:
    """Returns a value as it is in JSON, which has neither NumPy's types nor NaN.

    Args:
      value: Mappings and sequences of Python's and NumPy's values.

    Returns:
      The same in Python's types, None in place of NaN and infinities.
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
      TypeError: If it holds what JSON has no type for.
    """
    return json.dumps(to_plain(value), indent=2, allow_nan=False)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `value` as `to_json` has it, atomically."""
    text = to_json(value)
    with replacing(path) as file:
        file.write(f"{text}\n")
