"""The real main.py for tests: inside this process, or as a program of its own."""

import functools
import multiprocessing
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent import futures

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
    status = _run_with_new_flags(arguments)
    out, err = capfd.readouterr()
    return Finished(status, out, err)


def run_apart(folder: pathlib.Path, *arguments: str) -> Finished:
    """Runs main.py's `main` in another process, which ends after a few such runs.

    A process that ran hundreds of models would hold tens of gigabytes; one that starts
    for each run would import TensorFlow and convert the same functions with AutoGraph
    each time, which takes longer than the run.

    Args:
      folder: Where it may keep what is printed.
      *arguments: Of the command.
    """
    paths = folder / "out", folder / "err"
    status = _pool().submit(_run_into, paths, arguments).result()
    return Finished(status, *(path.read_text() for path in paths))


@functools.cache
def _pool() -> futures.Executor:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tff_algos.experiments.runner"])
    return futures.ProcessPoolExecutor(
        max_workers=1, mp_context=processes, max_tasks_per_child=4
    )


def _run_into(paths: Sequence[pathlib.Path], arguments: Sequence[str]) -> int:
    for path, descriptor in zip(paths, (1, 2), strict=True):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
        os.close(file)
    return _run_with_new_flags(arguments)


def _run_with_new_flags(arguments: Sequence[str]) -> int:
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
    sys.stdout.flush()
    sys.stderr.flush()
    return status


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


def run_program(*arguments: str, timeout: float = 300, **kwargs) -> Finished:
    """Runs main.py as a program to its end, of at most `timeout` seconds."""
    process = start(*arguments, **kwargs)
    out, err = process.communicate(timeout=timeout)
    return Finished(process.returncode, out, err)


def run_and_look_for_tensorflow(*arguments: str) -> tuple[Finished, bool]:
    """Runs main.py to its end, and tells whether it imported TensorFlow."""
    code = (
        "import sys; from tff_algos.experiments import cli\n"
        "try: cli.main()\n"
        "finally: print('tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    *out, last = done.stdout.splitlines()
    return Finished(done.returncode, "\n".join(out), done.stderr), last == "True"
