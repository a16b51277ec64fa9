"""Runs the test file of a Bazel test target with pytest."""

import os
import pathlib
import sys

import pytest


def main() -> int:
    """Returns pytest's exit status for the file that `TEST_TARGET` is named after."""
    package, _, name = os.environ["TEST_TARGET"].rpartition("//")[2].partition(":")
    root = pathlib.Path(__file__).parents[1]
    options = [
        "--quiet",
        "--import-mode=importlib",
        "--rootdir",
        str(root),
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
    ]
    status = pytest.main([*options, str(root / package / f"{name}.py")])
    # Of some files all tests are slow.
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else status


if __name__ == "__main__":
    sys.exit(main())
