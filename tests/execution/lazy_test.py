"""A lazy value is made at its first use, and once."""

import time
from concurrent import futures

import pytest

from tff_algos.execution.lazy import Lazy


def test_a_value_is_made_once_whatever_threads_ask():
    made = []

    def make():
        time.sleep(0.05)
        made.append(len(made))
        return made

    value = Lazy(make)
    assert made == []
    with futures.ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: value(), range(8)))
    assert made == [0] and all(each is made for each in found)


def test_a_value_that_could_not_be_made_is_tried_again():
    attempts = []

    def make():
        attempts.append(1)
        return 1 // (len(attempts) - 1)

    value = Lazy(make)
    with pytest.raises(ZeroDivisionError):
        value()
    assert value() == 1
