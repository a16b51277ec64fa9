"""What is wrong with a path that a user names."""

import os
import pathlib
import stat

# TensorFlow expands paths that contain one of these.
_PATTERN = "*?[\\"
NO_PATTERN = "a path without *, ?, [ or backslashes, which TensorFlow reads as patterns"


def fault(path: str | os.PathLike[str], *, is_folder: bool) -> str | None:
    """Returns why a path is no file, or no folder, that could be read; None if it is."""
    kind = "folder" if is_folder else "file"
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return f"there is no such {kind}"
    except OSError as error:
        return f"the {kind} cannot be read: {error.strerror}"
    if stat.S_ISDIR(mode) == is_folder and (is_folder or stat.S_ISREG(mode)):
        return None
    other = "a folder" if stat.S_ISDIR(mode) else "a file"
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        other = "a pipe or a device"
    return f"it is {other}, expected a {kind}"


def is_pattern(path: str | os.PathLike[str]) -> bool:
    """Returns whether TensorFlow could save to a path but not read from it again."""
    return any(character in _PATTERN for character in str(pathlib.Path(path)))


def is_utf8(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path's name is text, which files of results can hold."""
    try:
        os.fsencode(path).decode()
    except UnicodeDecodeError:
        return False
    return True
