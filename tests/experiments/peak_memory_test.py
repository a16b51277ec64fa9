"""A process's memory is its own, whoever started it."""

import subprocess
import sys

import numpy as np
import pytest

from tff_algos.experiments import peak_memory

MEGABYTES = 1 << 20


def test_the_peak_stays_when_memory_is_freed():
    np.ones(64 * MEGABYTES, np.uint8)
    before = peak_memory.peak_bytes()
    held = np.ones(2 * before, np.uint8)
    assert peak_memory.peak_bytes() > held.nbytes
    del held
    assert peak_memory.peak_bytes() > 2 * before


@pytest.mark.skipif(
    not peak_memory._STATUS.exists(), reason="Linux alone tells it of a process"
)
def test_what_the_starting_process_holds_does_not_count():
    held = np.ones(512 * MEGABYTES, np.uint8)
    program = (
        "from tff_algos.experiments.peak_memory import peak_bytes as p; print(p())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < held.nbytes / 2


def test_where_linux_does_not_tell_resource_does(monkeypatch, tmp_path):
    monkeypatch.setattr(peak_memory, "_STATUS", tmp_path / "none")
    assert peak_memory.peak_bytes() > MEGABYTES
