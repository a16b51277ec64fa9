"""The real main.py for tests: inside this process, or as a program of its own."""

import os
import pathlib
import subprocess
import sys

import attrs
from absl.testing import flagsaver

import main

ROOT = pathlib.Path(main.__file__).parent
# The smallest work that still trains, evaluates and personalizes.
SMALL = (
    "--data=generated",
    "--total_rounds=2",
    "--rounds_per_eval=2",
    "--eval_clients=2",
    "--personalization_epochs=1",
)


@attrs.frozen
class Finished:
    """How a command ended."""

    status: int
    out: str
    err: str


def run_here(capfd, *arguments: str) -> Finished:
    """Runs main.py's `main` in this process: no second import of TensorFlow."""
    capfd.readouterr()
    with flagsaver.flagsaver():
        # Flags of an earlier call must not stay set.
        main.FLAGS.unparse_flags()
        for name in main.FLAGS:
            main.FLAGS[name].using_default_value = True
        rest = main.FLAGS(["main.py", *arguments])
        try:
            main.main(rest)
        except SystemExit as stop:
            status = stop.code
    out, err = capfd.readouterr()
    return Finished(status, out, err)


def start(*arguments: str, **kwargs) -> subprocess.Popen:
    """Starts main.py as a program."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "main.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **kwargs,
    )


def run_program(*arguments: str, **kwargs) -> Finished:
    """Runs main.py as a program to its end."""
    process = start(*arguments, **kwargs)
    out, err = process.communicate(timeout=300)
    return Finished(process.returncode, out, err)
