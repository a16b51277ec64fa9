"""Which worker computes what: shares are pulled, lost ones run again elsewhere.

Replies are given in the order of the units, whoever computed them and how often, so
results depend neither on the number of workers nor on their failures.
"""

import collections
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from absl import logging

# A worker has the next share at hand while it computes one.
CALLS_PER_WORKER = 2
_MAX_ATTEMPTS = 3
# Units of a share by thread of a worker: more would keep too many values in memory.
_MAX_UNITS_PER_THREAD = 8


class WorkerLostError(RuntimeError):
    """Workers died, and no other one can take their share; the message is one line."""


class Calls(Protocol):
    """Calls of workers for one pass.

    Attributes:
      num_workers: The number of workers that are expected to take part.
      threads_per_worker: How many units a worker computes at a time.
    """

    num_workers: int
    threads_per_worker: int

    def has_room(self) -> bool:
        """Returns whether a worker takes another share now."""

    def submit(self, share: range) -> int:
        """Sends a share to the least busy worker; returns the number of the call."""

    def wait(self, seconds: float | None) -> Sequence[tuple[int, Sequence[Any] | None]]:
        """Waits for something to happen, at most for some seconds.

        Returns:
          Calls that ended, with a reply for each unit, or `None` if the worker was lost.

        Raises:
          WorkerLostError: If there is no worker left, and no hope of one.
        """

    def abandon(self, calls: Sequence[int]) -> None:
        """Drops calls whose replies nobody needs."""


def least_busy(queues: Sequence[Sequence[int]]) -> int | None:
    """Returns which worker takes the next share; `None` if none has room.

    Of those with room, the one with the fewest units: calls are of different sizes, and
    a worker with few of them may have most of what is left.

    Args:
      queues: For each worker, the number of units of each of its calls.
    """
    with_room = (k for k, own in enumerate(queues) if len(own) < CALLS_PER_WORKER)
    return min(with_room, key=lambda k: sum(queues[k]), default=None)


def share_size(num_left: int, num_workers: int, threads_per_worker: int) -> int:
    """Returns the number of units of the next share.

    Half of what is left is divided among the workers, so that shares become small
    toward the end, when a slow worker would make all others wait.
    """
    wanted = -(-num_left // (2 * num_workers))
    most = _MAX_UNITS_PER_THREAD * threads_per_worker
    return min(num_left, most, max(wanted, threads_per_worker))


def replies_in_order(calls: Calls, num_units: int) -> Iterator[Any]:
    """Yields the reply to each unit, in order.

    Args:
      calls: The workers.
      num_units: The number of units.

    Raises:
      WorkerLostError: If workers are lost with a unit again and again, or all of them.
    """
    pool = _Pool(calls, num_units)
    try:
        for number in range(num_units):
            yield pool.reply(number)
    finally:
        calls.abandon(list(pool.running))


class _Pool:
    """The shares of one pass.

    Attributes:
      running: The units of each call.
    """

    def __init__(self, calls: Calls, num_units: int):
        self.running: dict[int, range] = {}
        self._calls = calls
        self._num_units = num_units
        self._first_new = 0
        self._lost: collections.deque[range] = collections.deque()
        self._attempts: collections.Counter[int] = collections.Counter()
        self._replies: dict[int, Any] = {}

    def reply(self, number: int) -> Any:
        """Returns the reply to a unit; called in the order of the units."""
        self._advance(number, seconds=0.0)
        while number not in self._replies:
            self._advance(number, seconds=None)
        return self._replies.pop(number)

    def _advance(self, number: int, seconds: float | None) -> None:
        """Hands out shares, and takes in what has been computed."""
        while self._calls.has_room():
            share = self._next_share(number)
            if share is None:
                break
            self.running[self._calls.submit(share)] = share
        if not self.running and (number in self._replies or seconds == 0.0):
            return
        for call, replies in self._calls.wait(seconds):
            share = self.running.pop(call)
            if replies is None:
                self._lose(share)
            else:
                self._replies.update(zip(share, replies, strict=True))

    def _next_share(self, number: int) -> range | None:
        if self._lost:
            return self._lost.popleft()
        num_workers, threads = self._calls.num_workers, self._calls.threads_per_worker
        # Replies wait for the slowest worker: no more than these.
        window = 2 * CALLS_PER_WORKER * num_workers * threads * _MAX_UNITS_PER_THREAD
        num_left = min(self._num_units, number + window) - self._first_new
        if num_left <= 0:
            return None
        size = share_size(num_left, num_workers, threads)
        share = range(self._first_new, self._first_new + size)
        self._first_new = share.stop
        return share

    def _lose(self, share: range) -> None:
        """Queues a lost share, unit by unit: one of them may be the reason."""
        self._attempts.update(share)
        worst = max(share, key=self._attempts.__getitem__)
        if self._attempts[worst] >= _MAX_ATTEMPTS:
            raise WorkerLostError(
                f"{_MAX_ATTEMPTS} workers in turn were lost with part {worst} of "
                f"{self._num_units} of the clients' work; a worker may need more memory."
            )
        logging.info("Parts %s run again.", share)
        self._lost.extend(range(unit, unit + 1) for unit in share)
