"""Child processes learn of their parent's death, whatever its cause."""

import os
import signal
import subprocess
import sys

import pytest

from tff_algos import child_processes

# A parent of many threads that ignores the signal, starts a child, and then dies.
_PARENT = """
import os, signal, subprocess, sys, threading
from tff_algos import child_processes
signal.signal(signal.SIGHUP, signal.SIG_IGN)
command = child_processes.signalled_at_death(
    (sys.executable, "-c", sys.argv[1]), signal.SIGHUP
)
threads = [
    threading.Thread(target=lambda: subprocess.run(command)),
    *(threading.Thread(target=threading.Event().wait) for _ in range(8)),
]
for thread in threads:
    thread.daemon = True
    thread.start()
input()
{death}
"""
_CHILD = """
import time
from tff_algos.experiments.stopping import StopOnSignal
with StopOnSignal(may_exit=True) as stop:
    print("started", flush=True)
    while stop.received is None:
        time.sleep(0.01)
    time.sleep(1)  # A round goes on, whatever else the kernel says.
print("stopped after the round")
"""


@pytest.mark.parametrize(
    "death", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"]
)
def test_a_child_stops_between_rounds_when_its_parent_dies(death):
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT.format(death=death), _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout.readline() == "started\n"
        # The end of the output is that of the child, which inherits it.
        output, _ = parent.communicate("die\n", timeout=60)
    assert output == "stopped after the round\n"


def test_the_command_keeps_its_arguments_and_its_environment():
    show = (
        "import os, sys; print(sys.argv[1:], os.environ['SHOWN'], sys.flags.isolated)"
    )
    command = (sys.executable, "-c", show, "a b", "--c")
    output = subprocess.check_output(
        child_processes.signalled_at_death(command, signal.SIGKILL),
        env=os.environ | {"SHOWN": "yes"},
        text=True,
    )
    assert output == "['a b', '--c'] yes 0\n"


def test_a_command_whose_parent_has_died_before_it_starts_does_not_run(monkeypatch):
    monkeypatch.setattr(child_processes.os, "getpid", lambda: 1)
    command = child_processes.signalled_at_death(
        (sys.executable, "-c", "print('ran')"), signal.SIGKILL
    )
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (1, "")


def test_elsewhere_than_on_linux_the_command_is_unchanged(monkeypatch):
    monkeypatch.setattr(child_processes.sys, "platform", "darwin")
    command = ("/bin/true", "--c")
    assert child_processes.signalled_at_death(command, signal.SIGKILL) == command
