"""Downloads files of real data atomically.

TFF's SQLite files are unpacked and verified by their content; other published files are
verified by their size and digest.
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

# The address of the files of `tff.simulation.datasets`.
BASE_URL = "https://storage.googleapis.com/tff-datasets-public/"

_CHUNK_SIZE = 1 << 20
_TIMEOUT_SECONDS = 60


def cache_folder(cache_dir: str | None = None) -> str:
    """Returns the folder of the datasets: `cache_dir`, or TFF's default for None."""
    return os.path.expanduser(cache_dir or os.path.join("~", ".tff"))


def cached_path(name: str, cache_dir: str | None = None) -> str:
    """Returns the path of the file `name` (such as "shakespeare.sqlite")."""
    return os.path.join(cache_folder(cache_dir), name)


def is_cached(name: str, cache_dir: str | None = None) -> bool:
    """Returns whether the file exists; `sqlite_file.verify` checks it."""
    return os.path.exists(cached_path(name, cache_dir))


def obtain(name: str, cache_dir: str | None = None, base_url: str = BASE_URL) -> str:
    """Returns the path of a verified dataset file, downloading it if necessary.

    The file appears under its name only once it is complete; a failed or interrupted
    download leaves nothing behind. Several processes may call this concurrently: one
    downloads, the others wait for it.

    Args:
      name: File name, such as "emnist_all.sqlite".
      cache_dir: Folder of the datasets; None for TFF's own, `~/.tff`.
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
    """A published file, with its size and digest for verification.

    Attributes:
      name: Its name in the cache folder.
      url: Its address.
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
    """Returns the path of a published file, downloading it if necessary.

    As with `obtain`, the file appears under its name only once it is complete. An
    existing file may be the user's own and differ from the published one, so readers
    must check its content.

    Args:
      file: The file.
      cache_dir: Folder of the datasets; None for TFF's own, `~/.tff`.

    Raises:
      TaskError: If the download fails or the file differs from the published one.
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
    """Decides between the real dataset and its generated stand-in.

    Args:
      data: The `--data` flag. "auto" uses the real dataset if it is cached and never
        downloads.
      name: File name of the real dataset.
      cache_dir: Folder of the datasets; None for TFF's own, `~/.tff`.
      base_url: Address of the folder that holds `name` + ".lzma".

    Returns:
      The source ("tff": the file exists and is verified) and a line that the user must
      see, or None.

    Raises:
      TaskError: If the real dataset is required but unavailable, or the cached file is
        corrupt (the stand-in never replaces it silently).
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
        f"--data=auto found no {path}, so generated data are used, not the "
        "real dataset; --data=tff downloads the real one."
    )


def _make_once(path: str, make: Callable[[], None]) -> None:
    """Calls `make` in one process unless the file exists; other processes wait."""
    if os.path.exists(path):
        return
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
        with lock(path) as locked:
            if not os.path.exists(path):
                if locked:
                    remove_leftovers(path)
                make()
    except OSError as error:
        raise TaskError(
            f"cannot write {path} ({error.strerror or error}): free or unlock "
            f"{folder}, name another folder with --cache_dir, or use "
            "--data=generated."
        ) from error


@contextlib.contextmanager
def lock(path: str) -> Iterator[bool]:
    """Holds `path`.lock; yields False if the file system has no locks.

    The kernel releases the lock of a process that dies, so locks are never stale.
    """
    lock_path = path + ".lock"
    while True:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            locked = _acquire(descriptor, path)
            # The previous holder may have removed the file that we waited for.
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


def remove_leftovers(path: str) -> None:
    """Removes what killed processes wrote for `path`; requires the lock."""
    for leftover in glob.glob(glob.escape(path) + ".*.partial"):
        with contextlib.suppress(OSError):
            os.remove(leftover)


def _download(
    url: str,
    path: str,
    chunks: Iterable[bytes],
    find_problem: Callable[[str], str | None],
) -> None:
    """Writes `chunks` to the file at `path`, unless they are invalid."""
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
            raise _failure(url, path, f"not a dataset file: {problem}")
        # Temporary files are private to their owner, but the cache may be shared.
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)


def _decompressed(url: str, path: str) -> Iterator[bytes]:
    """Yields the decompressed body; raises `TaskError` if it is incomplete."""
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
