"""A process's memory is its own, whoever started it."""

import subprocess
import sys

import numpy as np
import pytest

from tff_algos.experiments import peak_memory

MEGABYTES = 1 << 20


def _printed(program):
    """Returns the numbers that a program prints."""
    program = f"from tff_algos.experiments.peak_memory import peak_bytes\n{program}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return list(map(int, done.stdout.split()))


def test_the_peak_stays_when_memory_is_freed():
    before, after = _printed(
        "before = peak_bytes()\n"
        "held = bytes([1]) * (256 << 20)\n"
        "del held\n"
        "print(before, peak_bytes())"
    )
    assert after - before > 200 * MEGABYTES


@pytest.mark.skipif(
    not peak_memory._STATUS.exists(), reason="Linux alone tells it of a process"
)
def test_what_the_starting_process_holds_does_not_count():
    held = np.ones(512 * MEGABYTES, np.uint8)
    (found,) = _printed("print(peak_bytes())")
    assert found < held.nbytes / 2


def test_where_linux_does_not_tell_resource_does(monkeypatch, tmp_path):
    monkeypatch.setattr(peak_memory, "_STATUS", tmp_path / "none")
    assert peak_memory.peak_bytes() > MEGABYTES
