"""Runs an engine in a separate process and monitors its memory."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import threading
import time
from collections.abc import Sequence

import attrs
import psutil

_MEGABYTE = 2**20
_WATCH_SECONDS = 0.2
_END_SECONDS = 10.0  # Grace period for children to end after their parent.


@attrs.frozen
class Outcome:
    """The outcome of a process.

    Attributes:
      results: The results of the engine's `recorder`, one for each workload.
      error: Why there are no results, in one line.
      peak_megabytes: Largest sum of proportional set sizes, MB (2**20 bytes), of
        the process and its children: shared pages count once.
      other_cores: Number of cores kept busy by processes other than this one, its
        children and the benchmark; they slow down the measured process.
      seconds: Duration of the process.
    """

    results: tuple[dict, ...] = ()
    error: str | None = None
    peak_megabytes: float = 0.0
    other_cores: float = 0.0
    seconds: float = 0.0


class _Watch:
    """Polls a process and its descendants."""

    def __init__(self, pid: int):
        self._root = psutil.Process(pid)
        self._seen = {self._root}
        self._own_seconds = {}  # CPU time by process, including ended ones.
        self._start = time.monotonic()
        self._busy_at_start = _busy_seconds()
        self._benchmark_at_start = _cpu_seconds(psutil.Process())
        self.peak_bytes = 0
        self.other_cores = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(_WATCH_SECONDS):
            self._look()

    def _look(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._seen |= set(self._root.children(recursive=True))
        total = 0
        for process in self._seen:
            # Processes may have ended or may not be readable.
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
                self._own_seconds[process] = _cpu_seconds(process)
        self.peak_bytes = max(self.peak_bytes, total)

    def end(self) -> None:
        """Stops polling and ends the remaining processes."""
        self._stop.set()
        self._thread.join()
        self._look()
        busy = _busy_seconds() - self._busy_at_start
        benchmark = _cpu_seconds(psutil.Process()) - self._benchmark_at_start
        others = busy - benchmark - sum(self._own_seconds.values())
        self.other_cores = max(0.0, others / (time.monotonic() - self._start))
        _, alive = psutil.wait_procs(list(self._seen), timeout=0)
        if alive:
            _, alive = psutil.wait_procs(alive, timeout=_END_SECONDS)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=_END_SECONDS)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _busy_seconds() -> float:
    """Returns the CPU time used by all processes."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system


def run(
    command: Sequence[str],
    *,
    result: pathlib.Path,
    log: pathlib.Path,
    timeout: float,
    cwd: pathlib.Path,
    gpu: bool = False,
) -> Outcome:
    """Runs an engine to its end; none of its processes remain afterwards.

    Args:
      command: Program and arguments; `--process_start` and `--result` are added.
      result: The file that the engine writes.
      log: The file for its output.
      timeout: Seconds after which it is killed.
      cwd: Its working directory.
      gpu: Whether GPUs are visible to it.
    """
    result.unlink(missing_ok=True)
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    if not gpu:
        # All engines use the CPU.
        environment |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    start = time.monotonic()
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [*command, f"--process_start={start}", f"--result={result}"],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=cwd,
            env=environment,
        )
        watch = _Watch(process.pid)
        try:
            status = process.wait(timeout)
            timed_out = False
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            watch.end()
    seconds = time.monotonic() - start
    if timed_out:
        return Outcome(error=f"killed after {timeout:.0f} s", seconds=seconds)
    outcome = _read(result, status)
    return attrs.evolve(
        outcome,
        peak_megabytes=watch.peak_bytes / _MEGABYTE,
        other_cores=watch.other_cores,
        seconds=seconds,
    )


def _read(result: pathlib.Path, status: int) -> Outcome:
    try:
        content = json.loads(result.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Outcome(error=describe_status(status))
    if "error" in content:
        return Outcome(error=content["error"])
    return Outcome(results=tuple(content["results"]))


def describe_status(status: int) -> str:
    """Returns a description of an exit status without a result."""
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return f"ended without a result, exit status {status}"
