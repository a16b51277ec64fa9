"""The results folder: checks its entries and locks it for one run at a time."""

import contextlib
import datetime
import errno
import fcntl
import itertools
import os
import pathlib
import sys
from collections.abc import Iterator

import tensorflow as tf

from tff_algos.clients import client_memory
from tff_algos.experiments import files, metrics_log, model_files, run_folders
from tff_algos.experiments.errors import FolderInUseError, OutputError

LOCK_FILE = "run.lock"
_FILES = (
    files.CONFIG_FILE,
    "metrics.csv",
    "per_client.csv",
    "summary.json",
    client_memory.FILE_NAME,
    LOCK_FILE,
)
_FOLDERS = (run_folders.CHECKPOINTS, run_folders.MODEL, "plots", "tensorboard")
# The errors of flock on file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)


def create_new(wanted: pathlib.Path) -> pathlib.Path:
    """Creates a folder and returns it.

    The name gets a number if there is such a folder: another run may have started in
    the same second. Other errors are left to `opened`, which names them.
    """
    for number in itertools.count(1):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            # Otherwise a parent exists that is not a folder, such as a broken link.
            if os.path.lexists(path):
                continue
        except OSError:
            pass
        return path


@contextlib.contextmanager
def opened(directory: pathlib.Path) -> Iterator[None]:
    """Creates a results folder, checks it, and locks out other runs.

    Files and rows of interrupted writes are removed.

    Raises:
      FolderInUseError: If another run writes to the folder.
      OutputError: If it or an entry is of the wrong kind: a file in place of a folder,
        the reverse, or a broken symbolic link.
      OSError: If the folder cannot be read or written.
    """
    if directory.exists() and not directory.is_dir():
        raise OutputError(f"--output_dir={directory} is a file, expected a folder.")
    directory.mkdir(parents=True, exist_ok=True)
    _check_entries(directory)
    with locked(directory):
        for name in _FILES:
            for leftover in files.partial_writes(directory / name):
                files.remove(leftover)
        for leftover in model_files.partial_writes(directory):
            files.remove(leftover)
        if (directory / "metrics.csv").is_file():
            metrics_log.remove_unfinished_row(directory / "metrics.csv")
        yield


def remove_final(directory: pathlib.Path) -> None:
    """Removes what a run wrote at its end, because it resumes."""
    for name in ("summary.json", "per_client.csv"):
        files.remove(directory / name)
    model_files.remove_final(directory)


@contextlib.contextmanager
def naming_errors(directory: pathlib.Path) -> Iterator[None]:
    """Converts write failures to a one-line error that names the folder."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        if isinstance(error, tf.errors.OpError):
            # Keep the first line, without the op's "{{node ...}}".
            reason = error.message.partition("\n")[0].rpartition("}} ")[2]
        else:
            reason = error.strerror or str(error)
            if error.filename is not None:
                reason = f"{error.filename}: {reason}"
        raise OutputError(
            f"--output_dir={directory} cannot be written: {reason}. Everything saved "
            "before is intact; fix the problem and run again to resume."
        ) from error


def _check_entries(directory: pathlib.Path) -> None:
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


def _kind(path: pathlib.Path) -> str:
    if path.is_dir():
        return "a folder"
    if path.is_symlink() and not path.exists():
        return "a symbolic link to nothing"
    return "a file" if path.is_file() else "no file"


@contextlib.contextmanager
def locked(directory: pathlib.Path) -> Iterator[None]:
    """Holds the folder's lock file, which names this process, and then removes it.

    The kernel releases the lock whenever the process dies, so the lock file of a killed
    run is taken over.

    Raises:
      FolderInUseError: If another process holds it.
      OSError: If the folder cannot be written.
    """
    path = directory / LOCK_FILE
    descriptor = _acquire(path)
    try:
        now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}, started {now}".encode(), 0)
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _acquire(path: pathlib.Path) -> int:
    """Returns the descriptor of the locked lock file."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, path)
            # The previous holder may have removed the file between the two calls.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, path: pathlib.Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace")
        raise FolderInUseError(
            f"--output_dir={path.parent} is in use by {holder or 'another process'}: "
            "wait until it ends, or choose another --output_dir."
        ) from error
    except OSError as error:
        # Some network and user-space file systems have no flock. Continue without a
        # lock, because runs there would be impossible otherwise.
        if error.errno not in _NO_LOCKS:
            raise
        print(
            f"warning: {path.parent} cannot be locked ({error.strerror}): start no "
            "second run in it.",
            file=sys.stderr,
            flush=True,
        )
