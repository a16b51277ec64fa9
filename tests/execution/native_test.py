"""Tests of tff_algos.execution.native: results, and the end of the worker."""

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
from tff_algos.execution import native
from tff_algos.execution import worker as worker_lib

_ROOT = pathlib.Path(__file__).parents[2]
_BINARY = pathlib.Path(tff.__file__).parent / "data" / "worker_binary"

# A user of the worker alone: it starts within milliseconds, TFF takes seconds.
_WORKER_SCRIPT = """
import importlib.util, os, pathlib, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker_lib = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker_lib)

def start():
    global worker
    worker = worker_lib.Worker(pathlib.Path(sys.argv[2]))

# The thread that starts the worker ends long before the process does.
thread = threading.Thread(target=start)
thread.start()
thread.join()
assert not worker.wait(0.2)
print(worker.pid, flush=True)
exec(sys.argv[3])
"""

_ENDS = {
    "return": ("pass", 0),
    "exception": ("raise ValueError('ours')", 1),
    "sys.exit": ("sys.exit(3)", 3),
    "os._exit": ("os._exit(4)", 4),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); signal.pause()", -15),
    "SIGINT": ("os.kill(os.getpid(), signal.SIGINT); signal.pause()", -2),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -9),
}


@tff.tensorflow.computation(np.float32)
def _double(x):
    return 2 * x


@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def _mean_of_doubles(x):
    return tff.federated_mean(tff.federated_map(_double, x))


@tff.tensorflow.computation(np.float32)
def _endless(x):
    return tf.while_loop(lambda x: x < 1e9, lambda x: [tf.minimum(x, 1.0)], [x])[0]


def _assert_gone(pid: int, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        # A zombie has ended: only its status waits for whoever adopted it.
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return
        except psutil.NoSuchProcess:
            return
        time.sleep(0.02)
    pytest.fail(f"The worker {pid} is alive after {seconds} s.")


def _workers_of_this_process() -> list[int]:
    return [
        child.pid
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and child.name() == "worker_binary"
    ]


@pytest.mark.parametrize("end", _ENDS)
def test_worker_ends_with_its_process(end):
    statement, expected_status = _ENDS[end]
    command = [sys.executable, "-c", _WORKER_SCRIPT, worker_lib.__file__, _BINARY]
    # Reads to the end of both streams: a worker that held one would time out.
    done = subprocess.run(
        [*command, statement],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == expected_status, done.stderr
    _assert_gone(int(done.stdout))
    if expected_status >= 0:
        assert "Exception ignored" not in done.stderr


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
    _assert_gone(int(pid))
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
    _assert_gone(int(done.stdout.split()[1]))


def test_results_are_right_and_start_up_is_quick():
    with native.native_context() as context:
        assert context.worker_pid is None
        start = time.monotonic()
        assert _mean_of_doubles([1.0, 2.0, 6.0]) == 6.0
        assert time.monotonic() - start < 5.0
        assert _mean_of_doubles([1.0]) == 2.0
        pid = context.worker_pid
        assert pid in _workers_of_this_process()
    _assert_gone(pid)


def test_works_in_a_running_event_loop():
    async def call():
        return _mean_of_doubles([1.0, 3.0])

    with native.native_context():
        assert asyncio.run(call()) == 4.0


def test_default_number_of_clients():
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
        _assert_gone(pid)
        assert _double(2.0) == 4.0


def test_closed_context_says_so():
    with native.native_context() as context:
        _double(1.0)
        pid = context.worker_pid
        context.close()
        context.close()
        _assert_gone(pid)
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


def test_a_fork_does_not_end_the_worker(tmp_path):
    worker = worker_lib.Worker(_BINARY, log=tmp_path / "worker.log")
    pid = os.fork()
    if pid == 0:
        worker.kill()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert worker.is_alive()
    worker.kill()
    assert not worker.is_alive()


def test_worker_that_does_not_start_is_reported_with_its_log(tmp_path):
    log = tmp_path / "worker.log"
    with pytest.raises(worker_lib.WorkerStartError, match="status 1, see .*worker.log"):
        worker_lib.Worker(_BINARY, ("--no_such_flag",), log)
    assert "no_such_flag" in log.read_text()
    with pytest.raises(worker_lib.WorkerStartError):
        worker_lib.Worker(tmp_path / "missing")
