"""The native context: results, and the end of its worker."""

import asyncio
import contextlib
import gc
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent import futures

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import equivalence
from tests.testing.ended_processes import assert_gone
from tff_algos.execution import native
from tff_algos.execution import worker as worker_lib

_ROOT = pathlib.Path(__file__).parents[2]


@tff.tensorflow.computation(np.float32)
def _double(x):
    return 2 * x


@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def _mean_of_doubles(x):
    return tff.federated_mean(tff.federated_map(_double, x))


@tff.tensorflow.computation(np.float32)
def _endless(x):
    return tf.while_loop(lambda x: x < 1e9, lambda x: [tf.minimum(x, 1.0)], [x])[0]


def _workers_of_this_process() -> list[int]:
    return [
        child.pid
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and child.name() == "worker_binary"
    ]


def _run_with_tff(body: str) -> subprocess.CompletedProcess:
    head = """
    from tff_algos.execution import native
    import os, signal, threading
    import numpy as np, tensorflow as tf, tensorflow_federated as tff
    context = native.set_native_context()
    @tff.tensorflow.computation(np.float32)
    def endless(x):
        return tf.while_loop(
            lambda x: x < 1e9, lambda x: [tf.minimum(x, 1.0)], [x])[0]
    @tff.tensorflow.computation(np.float32)
    def double(x):
        return 2 * x
    print(double(1.5), context.worker_pid, flush=True)
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=_ROOT,
        check=False,
    )


def test_worker_ends_with_tff_idle_and_nothing_is_printed_at_exit():
    done = _run_with_tff("")
    result, pid = done.stdout.split()
    assert (done.returncode, result) == (0, "3.0")
    assert_gone(int(pid))
    assert "Exception ignored" not in done.stderr
    assert "Traceback" not in done.stderr


def test_worker_ends_when_its_process_is_killed_in_a_computation():
    done = _run_with_tff(
        """
        kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
        threading.Timer(1.0, kill).start()
        endless(0.0)
        """
    )
    assert done.returncode == -signal.SIGKILL
    assert_gone(int(done.stdout.split()[1]))


def test_results_are_right_and_start_up_is_quick():
    with native.native_context() as context:
        assert context.worker_pid is None
        start = time.monotonic()
        assert _mean_of_doubles([1.0, 2.0, 6.0]) == 6.0
        assert time.monotonic() - start < 5.0
        assert _mean_of_doubles([1.0]) == 2.0
        pid = context.worker_pid
        assert pid in _workers_of_this_process()
    assert_gone(pid)


def test_works_in_a_running_event_loop():
    async def call():
        return _mean_of_doubles([1.0, 3.0])

    with native.native_context():
        assert asyncio.run(call()) == 4.0


def test_without_clients_in_arguments_there_are_as_many_as_by_default():
    @tff.federated_computation
    def count():
        return tff.federated_sum(tff.federated_value(1, tff.CLIENTS))

    with native.native_context(default_num_clients=3):
        assert count() == 3


def test_worker_that_died_idle_is_replaced_and_one_that_died_working_is_an_error():
    with native.native_context() as context:
        _double(1.0)
        first = context.worker_pid
        os.kill(first, signal.SIGKILL)
        while context.worker_pid is not None:
            time.sleep(0.01)
        assert _double(2.0) == 4.0
        second = context.worker_pid
        assert second != first
        threading.Timer(0.5, os.kill, (second, signal.SIGKILL)).start()
        with pytest.raises(worker_lib.WorkerDiedError, match="signal 9"):
            _endless(0.0)
        assert _double(3.0) == 6.0


def test_errors_of_a_computation_are_not_retried():
    @tff.tensorflow.computation(np.int32)
    def read_uninitialized(index):
        table = tf.lookup.experimental.MutableHashTable(tf.int32, tf.int32, 0)
        with tf.control_dependencies(
            [tf.debugging.assert_less(index, 0, message="too large")]
        ):
            return table.lookup(index)

    with native.native_context(), pytest.raises(Exception, match="too large"):
        read_uninitialized(1)


@contextlib.contextmanager
def _interruptible():
    """Lets interrupts through, which programs in the background ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_interrupted_computation_is_dropped_and_the_next_one_runs():
    with native.native_context() as context:
        _double(1.0)
        pid = context.worker_pid
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with _interruptible(), pytest.raises(KeyboardInterrupt):
            _endless(0.0)
        assert_gone(pid)
        assert _double(2.0) == 4.0


def test_closed_context_says_so():
    with native.native_context() as context:
        _double(1.0)
        pid = context.worker_pid
        context.close()
        context.close()
        assert_gone(pid)
        with pytest.raises(native.NativeContextClosedError):
            _double(1.0)


def _num_call_threads() -> int:
    return [thread.name for thread in threading.enumerate()].count("tff_calls")


def test_contexts_leave_no_descriptors_and_no_threads():
    def open_and_close():
        with native.native_context():
            assert _double(1.5) == 3.0

    open_and_close()
    threads, descriptors = _num_call_threads(), psutil.Process().num_fds()
    for _ in range(4):
        open_and_close()
        assert _num_call_threads() == threads
    dropped = [native.NativeContext() for _ in range(4)]
    assert _num_call_threads() == threads + 4
    dropped.clear()
    gc.collect()
    assert _num_call_threads() == threads
    # gRPC closes its four a little later; each context left three.
    assert psutil.Process().num_fds() <= descriptors + 4


def test_a_call_that_runs_when_its_context_is_closed_is_an_error():
    context = native.NativeContext()
    with futures.ThreadPoolExecutor(1) as thread:
        call = thread.submit(equivalence.call, context, _endless, 0.0)
        while context.worker_pid is None:
            time.sleep(0.01)
        time.sleep(0.5)
        context.close()
        with pytest.raises(worker_lib.NativeRuntimeError):
            call.result(timeout=10)
    with pytest.raises(native.NativeContextClosedError, match="was closed"):
        equivalence.call(context, _double, 1.0)
