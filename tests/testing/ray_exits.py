"""Drivers of a Ray of their own that end in every way, also while Ray starts.

    python -m tests.testing.ray_exits 100

Each must leave no process, no shared memory and no file behind.
"""

import contextlib
import ctypes
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import attrs
import psutil

_SHARED_MEMORY = pathlib.Path("/dev/shm")
# The semaphores of Python's multiprocessing, which other programs use, but not these.
_OTHERS = "sem.mp-"
_MAX_END_SECONDS = 20.0
_MAX_DRIVER_SECONDS = 120.0
# A driver is killed at some moment before this, most often while Ray starts.
_MAX_START_SECONDS = 6.0
_SET_CHILD_SUBREAPER = 36


class _OursError(Exception):
    """An error of the driver's program."""


def _raise() -> None:
    raise _OursError


def _signal(number: int) -> None:
    os.kill(os.getpid(), number)
    signal.pause()


def _kill_ray(name: str) -> None:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if name in " ".join(process.cmdline()):
                process.kill()


def _pass() -> None:
    """Returns."""


# What the driver does at last, and its exit status; `None` for any.
ENDS: dict[str, tuple[Callable[[], None], int | None]] = {
    "SIGKILL at any moment": (signal.pause, -signal.SIGKILL),
    "return": (_pass, 0),
    "exception": (_raise, 5),
    "os._exit": (lambda: os._exit(4), 4),
    "SIGTERM": (lambda: _signal(signal.SIGTERM), -signal.SIGTERM),
    "SIGINT": (lambda: _signal(signal.SIGINT), 6),
    "SIGKILL": (lambda: _signal(signal.SIGKILL), -signal.SIGKILL),
    # Ray may end a driver that lost its raylet.
    "loss of the raylet": (lambda: _kill_ray("raylet/raylet"), None),
    "loss of a worker": (lambda: _kill_ray("ray::Holder"), 0),
    "SIGKILL of the group": (
        lambda: os.killpg(0, signal.SIGKILL),
        -signal.SIGKILL,
    ),
    "sys.exit": (lambda: sys.exit(3), 3),
    "abort": (os.abort, -signal.SIGABRT),
    "more workers than CPUs": (_pass, 7),
    "a GPU that is absent": (_pass, 7),
}
# The workers that such a driver asks for; it gets a `ClusterError`.
_ASKED = {
    "more workers than CPUs": (1000, {"CPU": 1}),
    "a GPU that is absent": (1, {"CPU": 1, "GPU": 64}),
}
_AT_ANY_MOMENT = "SIGKILL at any moment"


@attrs.frozen
class Left:
    """What a driver left behind.

    Attributes:
      end: How it ended.
      processes: Command lines.
      segments: Names of shared memory.
      files: What is in its folder of temporary files.
    """

    end: str
    processes: Sequence[str]
    segments: Sequence[str]
    files: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.processes or self.segments or self.files)


def run(num_exits: int, seed: int = 0) -> list[Left]:
    """Runs drivers, one after another.

    Args:
      num_exits: The number of drivers; all ways to end take turns.
      seed: Decides when drivers are killed at any moment.

    Returns:
      What each left behind.
    """
    # Imported once, for all drivers.
    from tff_algos.execution.distributed import cluster

    # Whatever loses its parent becomes a child of this process.
    ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    chosen = random.Random(seed)
    names = list(ENDS)
    found = []
    for number in range(num_exits):
        end = names[number % len(names)]
        start = time.monotonic()
        found.append(_run_driver(cluster, end, chosen))
        seconds = time.monotonic() - start
        print(f"{number + 1}: {end}, {seconds:.1f} s", flush=True)
    return found


def _run_driver(cluster, end: str, chosen: random.Random) -> Left:
    # Short, because of the sockets below it.
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")
    before = set(os.listdir(_SHARED_MEMORY))
    told, to_tell = os.pipe()
    pid = os.fork()
    if not pid:
        _drive(cluster, end, folder, to_tell)
    os.close(to_tell)
    if end == _AT_ANY_MOMENT:
        time.sleep(chosen.uniform(0.0, _MAX_START_SECONDS))
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _MAX_DRIVER_SECONDS
    while (status := _status(pid)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"The driver that ends by {end} goes on.")
        time.sleep(0.05)
    expected = ENDS[end][1]
    if expected not in (None, status):
        error = os.read(told, 10_000).decode()
        raise RuntimeError(
            f"Expected status {expected} after {end}, found {status}. {error}"
        )
    os.close(told)
    left = _left(end, folder, before)
    deadline = time.monotonic() + _MAX_END_SECONDS
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left = _left(end, folder, before)
    for child in psutil.Process().children(recursive=True):
        child.kill()
    shutil.rmtree(folder)
    return left


def _drive(cluster, end: str, folder: str, to_tell: int) -> None:
    """Starts Ray, lets a worker hold shared memory, and ends; never returns.

    Args:
      cluster: The module that starts Ray.
      end: How to end.
      folder: For temporary files.
      to_tell: Where to write why there is no Ray.
    """
    os.setpgrp()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    tempfile.tempdir = folder
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = 1
    try:
        ray = cluster.open_cluster(None, *_ASKED.get(end, (1, {"CPU": 1}))).ray

        @ray.remote(num_cpus=1)
        class Holder:
            def hold(self, content):
                self.content = content
                return len(content)

        holder = Holder.remote()
        content = ray.put(bytes(20 << 20))
        assert ray.get(holder.hold.remote(content)) == 20 << 20
        ENDS[end][0]()
        status = 0
    except SystemExit as error:
        status = error.code
    except cluster.ClusterError as error:
        os.write(to_tell, str(error).encode())
        status = 7
    except _OursError:
        status = 5
    except KeyboardInterrupt:
        status = 6
    finally:
        # What an interpreter does at its end, without the parent's own finalizers.
        import atexit

        atexit._run_exitfuncs()
        os._exit(status)


def _status(pid: int) -> int | None:
    """Returns the exit status of a child, or `None` while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _left(end: str, folder: str, before: set[str]) -> Left:
    _reap()
    processes = []
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE:
                processes.append(" ".join(child.cmdline())[:200])
        except psutil.NoSuchProcess:
            continue
    new = sorted(set(os.listdir(_SHARED_MEMORY)) - before)
    segments = [name for name in new if not name.startswith(_OTHERS)]
    return Left(end, processes, segments, sorted(os.listdir(folder)))


def _reap() -> None:
    """Takes the statuses of ended children."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def main() -> None:
    num_exits = int(sys.argv[1]) if sys.argv[1:] else len(ENDS)
    start = time.monotonic()
    found = run(num_exits)
    bad = [left for left in found if left]
    for left in bad:
        print(left)
    seconds = time.monotonic() - start
    print(f"{len(found)} exits in {seconds:.0f} s, {len(bad)} left something behind.")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
