"""Workers in this process, called as a fleet's actors are."""

import threading

import attrs

from tff_algos import execution
from tff_algos.execution import op_threads
from tff_algos.execution.distributed import schedule, worker
from tff_algos.execution.distributed.remote_workers import RemoteWorkers


class _Store:
    """Ray's store without Ray."""

    def put(self, content):
        return content


class _Run:
    def __init__(self, own):
        self.remote = own.run


class _Actor:
    def __init__(self, own):
        self.run = _Run(own)


class LocalFleet:
    """A fleet whose calls are computed at once; the first few may be lost."""

    threads_per_worker = 1

    def __init__(
        self, num_workers: int = 2, num_lost: int = 0, max_cached_bytes: int = 1 << 30
    ):
        self.num_workers = num_workers
        self.lock = threading.RLock()
        num_threads = op_threads.count()
        self._workers = [
            worker.Worker(1, num_threads, max_cached_bytes) for _ in range(num_workers)
        ]
        self._num_lost = num_lost
        self._ended: list = []
        self.num_calls = 0

    def has_room(self):
        return len(self._ended) < schedule.CALLS_PER_WORKER * self.num_workers

    def submit(self, num_units, run):
        del num_units
        number = self.num_calls % self.num_workers
        reply = run(_Actor(self._workers[number]), number)
        call, self.num_calls = self.num_calls, self.num_calls + 1
        self._ended.append((call, None if call < self._num_lost else reply))
        return call, number

    def wait(self, seconds):
        del seconds
        # The last call ends first.
        return [self._ended.pop()] if self._ended else []

    def cancel(self, calls):
        self._ended = [each for each in self._ended if each[0] not in calls]


def context(
    fleet: LocalFleet, clients_per_sum: int = 1, **kwargs
) -> execution.InProcessContext:
    """Returns a context whose clients run in a fleet.

    Args:
      fleet: The fleet.
      clients_per_sum: As in `set_ray_context`.
      **kwargs: As in `set_in_process_context`.
    """
    found = execution.InProcessContext(**kwargs)
    workers = RemoteWorkers(_Store(), fleet, clients_per_sum)
    found._resources = attrs.evolve(found._resources, workers=workers)
    return found
