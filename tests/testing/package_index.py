"""A package index, from which some tests install."""

import pathlib
import subprocess
import sys

import pytest


def require(python: str | pathlib.Path = sys.executable) -> None:
    """Skips the test unless pip reaches a package index.

    Args:
      python: The interpreter whose pip is asked.
    """
    command = [python, "-m", "pip", "index", "versions", "absl-py"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("pip reaches no package index")
