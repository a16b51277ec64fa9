"""Runs the test file of a Bazel test target with pytest."""

import os
import pathlib
import sys

import pytest


def main() -> int:
    """Returns pytest's exit status for the file that `TEST_TARGET` is named after."""
    name = os.environ["TEST_TARGET"].rpartition(":")[2]
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
    return pytest.main([*options, str(root / f"{name}.py")])


if __name__ == "__main__":
    sys.exit(main())
