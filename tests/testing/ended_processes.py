"""Whether processes have ended."""

import time

import psutil
import pytest


def assert_gone(pid: int, seconds: float = 5.0) -> None:
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
