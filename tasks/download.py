"""The one door for files of real data: whole or not at all.

TFF's SQLite files come unpacked and verified by their content; a file that others
publish is verified by its size and its digest.
"""

import contextlib
import errno
import fcntl
import glob
import hashlib
import http.client
import lzma
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import attrs
import tqdm
from absl import logging

from tasks import sqlite_file
from tasks.task import TaskError

# Where `tff.simulation.datasets` finds its files.
BASE_URL = "https://storage.googleapis.com/tff-datasets-public/"

_CHUNK_SIZE = 1 << 20
_TIMEOUT_SECONDS = 60


def cache_folder(cache_dir: str | None = None) -> str:
    """Returns the folder of the data sets: `cache_dir`, or TFF's own for None."""
    return os.path.expanduser(cache_dir or os.path.join("~", ".tff"))


def cached_path(name: str, cache_dir: str | None = None) -> str:
    """Returns where the file `name` (such as "shakespeare.sqlite") belongs."""
    return os.path.join(cache_folder(cache_dir), name)


def is_cached(name: str, cache_dir: str | None = None) -> bool:
    """Tells whether the file is there; `verify` tells whether it is whole."""
    return os.path.exists(cached_path(name, cache_dir))


def obtain(name: str, cache_dir: str | None = None, base_url: str = BASE_URL) -> str:
    """Returns the path of a verified data set file, downloading it if need be.

    The file appears under its name only once it is whole; a failed or interrupted
    download leaves nothing behind. Several processes may call this at once: one
    downloads, the others wait for it.

    Args:
      name: File name, such as "emnist_all.sqlite".
      cache_dir: Folder of the data sets; None for TFF's own, `~/.tff`.
      base_url: Address of the folder that holds `name` + ".lzma".

    Raises:
      TaskError: If the cached file is corrupt, or the download fails.
    """
    path = cached_path(name, cache_dir)
    url = base_url.rstrip("/") + f"/{name}.lzma"

    def download() -> None:
        _download(url, path, _decompressed(url, path), sqlite_file.find_problem)
        sqlite_file.remember(path)

    _make_once(path, download)
    sqlite_file.verify(path)
    return path


@attrs.frozen(kw_only=True)
class PublishedFile:
    """A file as it is published, and what tells that it came whole.

    Attributes:
      name: What it is called in the cache folder.
      url: Where it is published.
      num_bytes: Its size.
      md5: The MD5 digest of its content, in hexadecimal.
    """

    name: str
    url: str
    num_bytes: int
    md5: str

    def find_problem(self, path: str) -> str | None:
        """Returns how the file at `path` differs from the published one, or None."""
        size = os.path.getsize(path)
        if size != self.num_bytes:
            return f"it has {size} bytes, not {self.num_bytes}"
        with open(path, "rb") as file:
            found = hashlib.file_digest(
                file, lambda: hashlib.md5(usedforsecurity=False)
            ).hexdigest()
        return None if found == self.md5 else f"its MD5 is {found}, not {self.md5}"


def obtain_published(file: PublishedFile, cache_dir: str | None = None) -> str:
    """Returns the path of a published file, downloading it if need be.

    As with `obtain`, the file appears under its name only once it is whole. One that
    is there is the user's own and may differ from the published one: whoever reads
    it checks what it holds.

    Args:
      file: The file.
      cache_dir: Folder of the data sets; None for TFF's own, `~/.tff`.

    Raises:
      TaskError: If the download fails, or brings anything but the published file.
    """
    path = cached_path(file.name, cache_dir)

    def download() -> None:
        _download(file.url, path, _body(file.url, path), file.find_problem)

    _make_once(path, download)
    return path


def resolve_source(
    data: Literal["auto", "tff", "generated"],
    name: str,
    cache_dir: str | None = None,
    base_url: str = BASE_URL,
) -> tuple[Literal["tff", "generated"], str | None]:
    """Decides between the real data set and its generated stand-in.

    Args:
      data: The `--data` flag. "auto" takes the real data set if it is cached and
        never downloads.
      name: File name of the real data set.
      cache_dir: Folder of the data sets; None for TFF's own, `~/.tff`.
      base_url: Address of the folder that holds `name` + ".lzma".

    Returns:
      The source ("tff": the file is there, verified) and a line that the user
      must see, or None.

    Raises:
      TaskError: If the real data set is wanted and cannot be had, or the cached
        file is corrupt (never replaced silently by the stand-in).
    """
    if data == "generated":
        return "generated", None
    if data == "tff":
        obtain(name, cache_dir, base_url)
        return "tff", None
    if data != "auto":
        raise TaskError(f"--data={data}: choose one of auto, tff, generated.")
    path = cached_path(name, cache_dir)
    if os.path.exists(path):
        sqlite_file.verify(path)
        return "tff", None
    return "generated", (
        f"--data=auto found no {path}, so the generated stand-in is used, not the "
        "real data set; --data=tff downloads the real one."
    )


def _make_once(path: str, make: Callable[[], None]) -> None:
    """Has one process `make` the file unless it is there; the others wait for it."""
    if os.path.exists(path):
        return
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
        with _lock(path) as locked:
            if not os.path.exists(path):
                if locked:
                    _remove_leftovers(path)
                make()
    except OSError as error:
        raise TaskError(
            f"cannot write {path} ({error.strerror or error}): free or unlock "
            f"{folder}, name another folder with --cache_dir, or use "
            "--data=generated."
        ) from error


@contextlib.contextmanager
def _lock(path: str) -> Iterator[bool]:
    """Holds `path`.lock; yields False where the file system has no locks.

    The kernel frees the lock of a process that dies, so none is ever stale.
    """
    lock_path = path + ".lock"
    while True:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            locked = _acquire(descriptor, path)
            # The holder before us may have removed the file we waited on.
            current = not locked or _is_same_file(descriptor, lock_path)
            if current:
                try:
                    yield locked
                finally:
                    if locked:
                        with contextlib.suppress(OSError):
                            os.remove(lock_path)
                return
        finally:
            os.close(descriptor)


def _acquire(descriptor: int, path: str) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logging.warning("Waiting for another process that downloads %s.", path)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
        return False
    return True


def _is_same_file(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _remove_leftovers(path: str) -> None:
    """Removes what killed downloads left; call with the lock held only."""
    for leftover in glob.glob(glob.escape(path) + ".*.partial"):
        with contextlib.suppress(OSError):
            os.remove(leftover)


def _download(
    url: str,
    path: str,
    chunks: Iterable[bytes],
    find_problem: Callable[[str], str | None],
) -> None:
    """Makes the file at `path` of `chunks`, unless something is wrong with it."""
    logging.info("Downloading %s to %s.", url, path)
    descriptor, partial = tempfile.mkstemp(
        prefix=os.path.basename(path) + ".",
        suffix=".partial",
        dir=os.path.dirname(path),
    )
    try:
        with open(descriptor, "wb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        problem = find_problem(partial)
        if problem is not None:
            raise _failure(url, path, f"not a data set file: {problem}")
        # A temporary file is its owner's alone; a shared cache is for everyone.
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)


def _decompressed(url: str, path: str) -> Iterator[bytes]:
    """Yields the decompressed body; raises `TaskError` unless it comes whole."""
    decompressor = lzma.LZMADecompressor()
    for chunk in _body(url, path):
        if decompressor.eof:
            raise _failure(url, path, "data after the end of the LZMA stream")
        try:
            data = decompressor.decompress(chunk)
        except lzma.LZMAError as error:
            raise _failure(url, path, f"not an LZMA file: {error}") from error
        yield data
    if not decompressor.eof:
        raise _failure(url, path, "the LZMA stream ends too early")


def _body(url: str, path: str) -> Iterator[bytes]:
    """Yields the response in chunks, checking its length, with a progress bar."""
    try:
        response = urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS)
    except (OSError, http.client.HTTPException) as error:
        raise _failure(url, path, _describe(error)) from error
    with response:
        length = response.headers.get("content-length")
        total = int(length) if length is not None else None
        with tqdm.tqdm(
            total=total,
            desc=f"Downloading {os.path.basename(path)}",
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            disable=None,
        ) as progress:
            received = 0
            while True:
                try:
                    chunk = response.read(_CHUNK_SIZE)
                except (OSError, http.client.HTTPException) as error:
                    raise _failure(url, path, _describe(error)) from error
                if not chunk:
                    break
                received += len(chunk)
                progress.update(len(chunk))
                yield chunk
        if total is not None and received != total:
            raise _failure(url, path, f"{received} of {total} bytes came")


def _describe(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    reason = getattr(error, "reason", error)
    return str(reason) or type(reason).__name__


def _failure(url: str, path: str, reason: str) -> TaskError:
    return TaskError(
        f"cannot download {url} ({reason}): try again, put the unpacked file at "
        f"{path}, or use --data=generated, which needs no download."
    )
