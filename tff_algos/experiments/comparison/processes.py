"""Runs the command line in subprocesses, each with its share of the CPUs.

On Linux, a subprocess saves its run and ends when this process dies for any reason.
"""

import os
import pathlib
import queue
import signal
import subprocess
import sys
from collections.abc import Sequence

import numpy as np

from tff_algos import child_processes

# Without -P, a file or folder `tasks` in the current folder would be imported as ours.
_COMMAND = (sys.executable, "-P", "-m", "tff_algos.experiments")
_ROOT = pathlib.Path(__file__).parents[3]


def cpu_shares(jobs: int) -> list[set[int]]:
    """Divides the CPUs that this process may use among jobs, at least one for each."""
    cpus = sorted(os.sched_getaffinity(0))
    if jobs > len(cpus):
        return [{cpus[job % len(cpus)]} for job in range(jobs)]
    return [set(share.tolist()) for share in np.array_split(cpus, jobs)]


def _python_path() -> str:
    """Returns where a process finds this package, and what this one may import."""
    return os.pathsep.join([str(_ROOT), *(path or os.getcwd() for path in sys.path)])


class Program:
    """Calls the command line; all running calls can be stopped together.

    Concurrent calls are pinned to separate CPUs if the system supports it: two runs of
    Adult's linear model on four shared CPUs took 0.65 s per round, four runs on one CPU
    each 0.28 s.

    Args:
      jobs: The largest number of concurrent calls.
    """

    def __init__(self, jobs: int = 1) -> None:
        self._running: set[subprocess.Popen] = set()
        self._stopped = False
        self._free_shares: queue.SimpleQueue[set[int] | None] = queue.SimpleQueue()
        can_share = hasattr(os, "sched_setaffinity")
        for share in cpu_shares(jobs) if can_share else [None] * jobs:
            self._free_shares.put(share)

    def __call__(self, arguments: Sequence[str], log: pathlib.Path) -> int:
        """Runs it, appends its output to `log`, and returns its exit status."""
        share = self._free_shares.get()
        try:
            return self._call(arguments, log, share)
        finally:
            self._free_shares.put(share)

    def _call(
        self, arguments: Sequence[str], log: pathlib.Path, share: set[int] | None
    ) -> int:
        command = (*_COMMAND, *arguments)
        with open(log, "a") as output:
            process = subprocess.Popen(
                child_processes.signalled_at_death(command, signal.SIGHUP),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": _python_path()},
                # Otherwise it would receive the terminal's Ctrl-C in addition to
                # `stop`'s signal, and a second signal prevents it from saving.
                start_new_session=True,
            )
            if share is not None:
                # Before the process starts threads, which inherit the affinity.
                os.sched_setaffinity(process.pid, share)
            self._running.add(process)
            if self._stopped:
                process.terminate()
            status = process.wait()
        self._running.discard(process)
        return status

    def stop(self) -> None:
        """Makes all current and future calls finish their round, save and exit."""
        self._stopped = True
        for process in list(self._running):
            process.terminate()
