"""The worker ends with its process, and says why it does not start."""

import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow_federated as tff

from tests.testing.ended_processes import assert_gone
from tff_algos.execution import worker as worker_lib

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
    assert_gone(int(done.stdout))
    if expected_status >= 0:
        assert "Exception ignored" not in done.stderr


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
