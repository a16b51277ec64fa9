"""The results folder: what may be in it, and what interrupted writes left there."""

import os
import pathlib

from tff_algos.simulation import client_memory, files
from tff_algos.simulation.checkpoints import CONFIG_FILE
from tff_algos.simulation.errors import OutputError

_FILES = (
    CONFIG_FILE,
    "metrics.csv",
    "per_client.csv",
    "summary.json",
    client_memory.FILE_NAME,
)
_FOLDERS = ("checkpoints", "plots", "tensorboard")


def prepare(directory: pathlib.Path) -> None:
    """Checks the kinds of a results folder's entries and removes partial writes.

    Raises:
      OutputError: If a file is where a folder belongs, the reverse, or a symbolic link
        to nothing.
      OSError: If the folder cannot be read or partial writes cannot be removed.
    """
    for names, wanted, is_wanted in (
        (_FILES, "file", pathlib.Path.is_file),
        (_FOLDERS, "folder", pathlib.Path.is_dir),
    ):
        for name in names:
            path = directory / name
            if os.path.lexists(path) and not is_wanted(path):
                raise OutputError(
                    f"{path} is {_kind(path)} where a {wanted} belongs: move it away, "
                    "or choose another --output_dir."
                )
    for name in _FILES:
        for leftover in files.partial_writes(directory / name):
            files.remove(leftover)


def _kind(path: pathlib.Path) -> str:
    if path.is_dir():
        return "a folder"
    if path.is_symlink() and not path.exists():
        return "a symbolic link to nothing"
    return "a file" if path.is_file() else "no file"
