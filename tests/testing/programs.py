"""Stands for the command line in tests of comparisons."""

import pathlib

from tests.testing.made_up_runs import CURVE, write_run
from tff_algos.experiments import declarations
from tff_algos.experiments.comparison import compare


class Program:
    """Writes a run of its own curve, or fails.

    Args:
      curves: Accuracies by the run's folder; the same for all others.
      failures: Parts of the names of folders whose runs fail.
    """

    def __init__(self, curves=(), failures=()):
        self._curves = dict(curves)
        self._failures = failures
        self.calls = []

    def __call__(self, arguments, log):
        *given, output_dir = arguments
        self.calls.append(given)
        folder = pathlib.Path(output_dir.removeprefix("--output_dir="))
        assert log == folder / "log.txt"
        if any(failure in folder.name for failure in self._failures):
            lines = [f"line {number}" for number in range(20)]
            log.write_text("\n".join([*lines, "round 1\rround 2", "error: broken"]))
            return 2
        write_run(folder, curve=self._curves.get(folder.name, CURVE))
        return 0

    def stop(self):
        """Its calls end by themselves."""


def stand_in(monkeypatch):
    """Returns a program in place of the command line, and replaces what takes seconds."""
    program = Program({"fedavg+seed=1": (0.2, 0.4)})
    monkeypatch.setattr(compare, "Program", lambda jobs: program)
    monkeypatch.setattr(compare.checks, "check", lambda *_: {})
    monkeypatch.setattr(compare.plugins, "declare", lambda _: declarations.load())
    return program
