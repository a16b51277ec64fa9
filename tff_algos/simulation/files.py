"""Files that are either old or new, never half written."""

import contextlib
import glob
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, TextIO


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


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `value` as indented JSON, atomically."""
    with replacing(path) as file:
        json.dump(value, file, indent=2, default=_plain)
        file.write("\n")


def _plain(value: Any) -> Any:
    """Returns NumPy's scalars and arrays as Python's own."""
    return value.tolist()
