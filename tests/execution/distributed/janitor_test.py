"""What was started goes with its process, and so does the folder."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.testing.ended_processes import assert_gone
from tff_algos.execution.distributed import janitor as janitor_lib
from tff_algos.execution.distributed.janitor import Janitor

_SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


def test_marked_processes_end_and_no_others(tmp_path):
    folder = tmp_path / "ray"
    folder.mkdir()
    (folder / "log").write_text("")
    janitor = Janitor(str(folder))
    with janitor.marking():
        own = subprocess.Popen(_SLEEP, start_new_session=True)
    with Janitor(str(tmp_path / "other")).marking():
        other = subprocess.Popen(_SLEEP)
    assert janitor_lib._MARK not in os.environ
    assert own.poll() is None
    janitor.end()
    assert own.wait(5) == -signal.SIGKILL
    assert not folder.exists()
    assert other.poll() is None
    other.kill()
    other.wait()


def test_what_logs_to_the_folder_ends_without_the_mark_but_not_the_driver(tmp_path):
    folder = tmp_path / "ray"
    folder.mkdir()
    janitor = Janitor(str(folder))
    with open(folder / "log", "w", encoding="utf-8") as log:
        renamed = subprocess.Popen(_SLEEP, stderr=log, start_new_session=True)
        janitor.end()
    assert renamed.wait(5) == -signal.SIGKILL
    assert not folder.exists()


_DRIVER = """
import importlib.util, os, signal, subprocess, sys
spec = importlib.util.spec_from_file_location("janitor", sys.argv[1])
janitor_lib = importlib.util.module_from_spec(spec)
spec.loader.exec_module(janitor_lib)
os.mkdir(sys.argv[2])
janitor = janitor_lib.Janitor(sys.argv[2])
with janitor.marking():
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(60)"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
print(child.pid, janitor._process.pid, flush=True)
exec(sys.argv[3])
"""


@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "os._exit(3)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.killpg(0, signal.SIGTERM)",
    ],
)
def test_any_end_of_the_driver_ends_them(end, tmp_path):
    folder = tmp_path / "ray"
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER, janitor_lib.__file__, str(folder), end],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        start_new_session=True,
    )
    for pid in done.stdout.split():
        assert_gone(int(pid))
    assert not pathlib.Path(folder).exists(), done.stderr
