"""Child processes learn of their parent's death, whatever its cause."""

import os
import signal
import subprocess
import sys

import pytest

from tff_algos import child_processes

# A parent that starts a child, passes on the child's first line, and then dies.
_PARENT = """
import os, signal, subprocess, sys
from tff_algos import child_processes
command = (sys.executable, "-c", sys.argv[1])
subprocess.Popen(child_processes.signalled_at_death(command, signal.SIGTERM))
input()
{death}
"""
_CHILD = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("told")))
print("started", flush=True)
signal.pause()
"""


@pytest.mark.parametrize(
    "death", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"]
)
def test_a_child_gets_the_signal_when_its_parent_dies(death):
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT.format(death=death), _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout.readline() == "started\n"
        # The end of the output is that of the child, which inherits it.
        output, _ = parent.communicate("die\n", timeout=60)
    assert output == "told\n"


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
