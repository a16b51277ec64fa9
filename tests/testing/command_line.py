"""The real main.py for tests: inside this process, or as a program of its own."""

import multiprocessing
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

import attrs
from absl.testing import flagsaver

from tff_algos.experiments import cli

ROOT = pathlib.Path(__file__).parents[2]
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
    cli.define_flags()
    with flagsaver.flagsaver():
        # Flags of an earlier call must not stay set.
        cli.FLAGS.unparse_flags()
        for name in cli.FLAGS:
            cli.FLAGS[name].using_default_value = True
        try:
            cli.run_parsed(cli.parse_flags(["main.py", *arguments]))
        except SystemExit as stop:
            status = stop.code
    out, err = capfd.readouterr()
    return Finished(status, out, err)


def run_apart(folder: pathlib.Path, *arguments: str) -> Finished:
    """Runs main.py's `main` in a process of its own, whose memory ends with it.

    It is a copy of one that has imported TensorFlow and done nothing else.

    Args:
      folder: Where it may keep what is printed.
      *arguments: Of the command.
    """
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["main"])
    paths = folder / "out", folder / "err"
    process = processes.Process(target=_run_into, args=(paths, arguments))
    process.start()
    process.join()
    return Finished(process.exitcode, *(path.read_text() for path in paths))


def _run_into(paths: Sequence[pathlib.Path], arguments: Sequence[str]) -> None:
    for path, descriptor in zip(paths, (1, 2), strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    cli.run_parsed(cli.parse_flags(["main.py", *arguments]))


def start(
    *arguments: str, environment: Mapping[str, str] | None = None, **kwargs
) -> subprocess.Popen:
    """Starts main.py as a program, with more environment variables if need be."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
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
