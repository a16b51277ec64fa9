"""Calls of main.py, each with its share of the CPUs."""

import os
import pathlib
import queue
import subprocess
import sys
from collections.abc import Sequence

import numpy as np

_MAIN = pathlib.Path(__file__).parents[1] / "main.py"


def cpu_shares(jobs: int) -> list[set[int]]:
    """Divides the CPUs that this process may use among jobs; one CPU is the least."""
    cpus = sorted(os.sched_getaffinity(0))
    if jobs > len(cpus):
        return [{cpus[job % len(cpus)]} for job in range(jobs)]
    return [set(share.tolist()) for share in np.array_split(cpus, jobs)]


class MainProgram:
    """Calls main.py, so that all calls that run can be stopped together.

    Calls that run at the same time keep to CPUs of their own where the system has
    such a thing: measured, two runs of Adult's linear model on four CPUs took 0.65 s
    a round, and four, each on its own, 0.28 s.

    Args:
      jobs: How many calls there may be at the same time.
    """

    def __init__(self, jobs: int = 1) -> None:
        self._running: set[subprocess.Popen] = set()
        self._stopped = False
        self._free_shares: queue.SimpleQueue[set[int] | None] = queue.SimpleQueue()
        can_share = hasattr(os, "sched_setaffinity")
        for share in cpu_shares(jobs) if can_share else [None] * jobs:
            self._free_shares.put(share)

    def __call__(self, arguments: Sequence[str], log: pathlib.Path) -> int:
        """Runs main.py, what it prints added to `log`; returns its exit status."""
        share = self._free_shares.get()
        try:
            return self._call(arguments, log, share)
        finally:
            self._free_shares.put(share)

    def _call(
        self, arguments: Sequence[str], log: pathlib.Path, share: set[int] | None
    ) -> int:
        with open(log, "a") as output:
            process = subprocess.Popen(
                [sys.executable, _MAIN, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                # The terminal's Ctrl-C would come to it besides `stop`'s signal, and
                # a second one keeps it from saving.
                start_new_session=True,
            )
            if share is not None:
                # Long before its first thread: those that come inherit it.
                os.sched_setaffinity(process.pid, share)
            self._running.add(process)
            if self._stopped:
                process.terminate()
            status = process.wait()
        self._running.discard(process)
        return status

    def stop(self) -> None:
        """Lets calls end their round and save it, this one and all to come."""
        self._stopped = True
        for process in list(self._running):
            process.terminate()
