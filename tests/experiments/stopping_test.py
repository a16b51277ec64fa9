"""Signals stop a run between rounds; a second one does not wait."""

import os
import signal
import subprocess
import sys
import threading
from concurrent import futures

import pytest

from tff_algos.experiments import stopping
from tff_algos.experiments.stopping import StopOnSignal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_remembered_and_a_second_raises(number, monkeypatch):
    monkeypatch.setattr(stopping, "_SAME_STOP_SECONDS", 0.0)
    before = signal.getsignal(number)
    with StopOnSignal() as stop:
        assert stop.received is None
        os.kill(os.getpid(), number)
        assert stop.received is number
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_what_timeout_sends_twice_is_one_stop(monkeypatch):
    monkeypatch.setattr(stopping, "_SAME_STOP_SECONDS", 60.0)
    with StopOnSignal() as stop:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received is signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            stop._handle(signal.SIGINT, None)


def test_a_hang_up_is_never_the_second_signal(capsys):
    notices = threading.Semaphore(0)

    def notice():
        notices.release()
        return "soon"

    # The tests themselves may run under `nohup`.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with StopOnSignal(notice, may_exit=True) as stop:
            for _ in range(20):
                os.kill(os.getpid(), signal.SIGHUP)
            assert stop.received is signal.SIGHUP
            assert notices.acquire(timeout=10)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
    assert capsys.readouterr().err == "\nsoon\n"


def test_a_hang_up_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopOnSignal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


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


def test_the_notice_comes_while_python_does_nothing():
    """A computation of seconds in TensorFlow runs no Python in the main thread."""
    program = """
import ctypes, os, signal, threading
from tff_algos.experiments.stopping import StopOnSignal
with StopOnSignal(lambda: "soon", may_exit=True) as stop:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGTERM)).start()
    # Busy without the interpreter's lock, and nobody to run handlers.
    libc = ctypes.CDLL(None)
    while True:
        libc.sleep(60)
"""
    finished = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert finished.returncode == 128 + signal.SIGTERM
    assert finished.stderr.split("\n") == ["", "soon", "", "stopped now", ""]


def test_the_notice_is_printed_once(capsys):
    printed = threading.Event()
    notices = []

    def notice():
        notices.append("soon")
        printed.set()
        return "soon"

    with StopOnSignal(notice):
        os.kill(os.getpid(), signal.SIGINT)
        assert printed.wait(10)
    assert notices == ["soon"]
    assert capsys.readouterr().err == "\nsoon\n"
