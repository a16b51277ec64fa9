"""Shares: every unit once, in order, whatever workers do."""

import random

import hypothesis
import pytest
from hypothesis import strategies as st

from tff_algos.execution.distributed import schedule


class _Calls:
    """Workers that end calls in any order, and may be lost."""

    def __init__(self, num_workers, threads, seed, losses=0, fatal=None):
        self.num_workers, self.threads_per_worker = num_workers, threads
        self.running, self.sizes, self.computed = {}, [], []
        self.most_waiting = 0
        self._random = random.Random(seed)
        self._losses, self._fatal = losses, fatal

    def has_room(self):
        return len(self.running) < schedule.CALLS_PER_WORKER * self.num_workers

    def submit(self, share):
        assert self.has_room() and len(share)
        call = len(self.sizes)
        self.sizes.append(len(share))
        self.running[call] = share
        return call

    def wait(self, seconds):
        if not self.running or (seconds == 0.0 and self._random.random() < 0.5):
            return []
        call = self._random.choice(sorted(self.running))
        share = self.running.pop(call)
        is_lost = self._fatal in share or (self._losses and self._random.random() < 0.3)
        if is_lost:
            self._losses = max(0, self._losses - 1)
            return [(call, None)]
        self.computed += share
        return [(call, [10 * unit for unit in share])]

    def abandon(self, calls):
        for call in calls:
            del self.running[call]


@hypothesis.given(
    num_units=st.integers(0, 300),
    num_workers=st.integers(1, 9),
    threads=st.integers(1, 4),
    seed=st.integers(0, 99),
    losses=st.integers(0, 2),
)
def test_replies_come_in_order_and_each_unit_counts_once(
    num_units, num_workers, threads, seed, losses
):
    calls = _Calls(num_workers, threads, seed, losses)
    found = list(schedule.replies_in_order(calls, num_units))
    assert found == [10 * unit for unit in range(num_units)]
    assert sorted(calls.computed) == list(range(num_units))
    assert not calls.running


def test_shares_are_small_at_the_end():
    calls = _Calls(num_workers=2, threads=1, seed=0)
    list(schedule.replies_in_order(calls, 20))
    assert calls.sizes == sorted(calls.sizes, reverse=True)
    assert calls.sizes[0] == 5 and calls.sizes[-2:] == [1, 1]


@pytest.mark.parametrize(
    ("left", "workers", "threads", "expected"),
    [(10, 2, 1, 3), (1, 8, 1, 1), (1000, 2, 1, 8), (1000, 2, 4, 32), (5, 4, 4, 4)],
)
def test_sizes_of_shares(left, workers, threads, expected):
    assert schedule.share_size(left, workers, threads) == expected


def test_replies_that_wait_for_the_slowest_worker_are_bounded():
    calls = _Calls(num_workers=2, threads=1, seed=1)
    slow = calls.wait

    def first_call_never_ends(seconds):
        held = calls.running.pop(0, None)
        ended = slow(seconds)
        if held is not None:
            calls.running[0] = held
        if not ended and len(calls.running) == 1 and seconds is None:
            raise TimeoutError
        return ended

    calls.wait = first_call_never_ends
    with pytest.raises(TimeoutError):
        list(schedule.replies_in_order(calls, 100_000))
    assert len(calls.computed) <= 2 * 2 * 2 * 8


def test_a_unit_that_no_worker_survives_is_given_up():
    calls = _Calls(num_workers=2, threads=1, seed=0, fatal=7)
    with pytest.raises(schedule.WorkerLostError, match="3 workers in turn.* part 7 of"):
        list(schedule.replies_in_order(calls, 20))
    assert not calls.running


def test_what_nobody_waits_for_is_dropped():
    calls = _Calls(num_workers=3, threads=1, seed=0)
    replies = schedule.replies_in_order(calls, 50)
    assert next(replies) == 0
    replies.close()
    assert not calls.running and len(calls.computed) < 50


class _Clock:
    """Workers of different speeds, on a clock of numbers; calls go as in `Fleet`."""

    threads_per_worker = 1

    def __init__(self, seconds_per_unit):
        self.num_workers = len(seconds_per_unit)
        self.num_units = [0] * self.num_workers
        self.now = 0.0
        self._seconds_per_unit = seconds_per_unit
        self._queues = [[] for _ in seconds_per_unit]
        self._num_calls = 0

    def has_room(self):
        return self._least_busy() is not None

    def _least_busy(self):
        return schedule.least_busy(
            [[len(share) for *_, share in queue] for queue in self._queues]
        )

    def submit(self, share):
        worker = self._least_busy()
        queue, seconds = self._queues[worker], self._seconds_per_unit[worker]
        start = max(self.now, queue[-1][0]) if queue else self.now
        call, self._num_calls = self._num_calls, self._num_calls + 1
        queue.append((start + seconds * len(share), call, share))
        self.num_units[worker] += len(share)
        return call

    def wait(self, seconds):
        if seconds == 0.0:
            return []
        first = min((queue for queue in self._queues if queue), key=lambda q: q[0])
        self.now, call, share = first.pop(0)
        return [(call, list(share))]

    def abandon(self, calls):
        assert not calls


def test_workers_of_one_speed_end_together():
    calls = _Clock([1.0, 1.0])
    list(schedule.replies_in_order(calls, 10))
    assert calls.num_units == [5, 5] and calls.now == 5.0


def test_the_next_share_goes_to_whoever_has_room_and_the_fewest_units():
    assert schedule.least_busy([[3], [2, 1], [2]]) == 2
    assert schedule.least_busy([[3, 3], [1, 1]]) is None
    assert schedule.least_busy([]) is None


def test_a_slow_worker_gets_less():
    calls = _Clock([1.0, 1.0, 1.0, 8.0])
    list(schedule.replies_in_order(calls, 400))
    *fast, slow = calls.num_units
    assert sum(calls.num_units) == 400
    assert min(fast) > 3 * slow
    # Equal parts would take 800.
    assert calls.now < 300
