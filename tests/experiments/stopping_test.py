"""Signals stop a run between rounds; a second one does not wait."""

import os
import signal
from concurrent import futures

import pytest

from tff_algos.experiments.stopping import StopOnSignal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_remembered_and_a_second_raises(number):
    before = signal.getsignal(number)
    with StopOnSignal() as stop:
        assert stop.received is None
        os.kill(os.getpid(), number)
        assert stop.received is number
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_handlers_are_as_before_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), StopOnSignal():
        assert signal.getsignal(signal.SIGINT) is not before
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_of_the_main_thread_nothing_changes():
    before = signal.getsignal(signal.SIGINT)

    def handler_within():
        with StopOnSignal():
            return signal.getsignal(signal.SIGINT)

    with futures.ThreadPoolExecutor(1) as thread:
        assert thread.submit(handler_within).result() is before
