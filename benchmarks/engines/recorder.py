"""The protocol between the benchmark and an engine, on the engine's side.

An engine is a script that trains the workloads of its `--inputs`, one after another,
and reports the end of each round to a `Recorder`. This module uses only the standard
library and NumPy, because every engine's environment imports it.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.engines import cpu_time, workloads

# The weights are compared after this many rounds: the second round tests that the
# state of the first is used.
CHECKED_ROUNDS = 2

# One point of a growth curve takes up to this many times the work of the previous one.
_GROWTH = 3.5


class NotAvailableError(Exception):
    """The engine cannot run here; the message is one line."""


@dataclasses.dataclass
class Recorder:
    """Times rounds and decides when to stop.

    Attributes:
      seconds: Stop after this time of rounds, excluding the first.
      max_rounds: The largest number of rounds.
      weights_path: The file for the weights after `CHECKED_ROUNDS`, or `None`.
      process_start: The start time of this process, by `time.monotonic()`.
      round_seconds: Seconds of each round; the first includes building.
      round_cpu_seconds: CPU time of each round, user and system, of this process and
        its descendants.
      start_up_seconds: From the start of the process to the end of round 1.
    """

    seconds: float
    max_rounds: int
    weights_path: str | None
    process_start: float
    round_seconds: list[float] = dataclasses.field(default_factory=list)
    round_cpu_seconds: list[float] = dataclasses.field(default_factory=list)
    start_up_seconds: float | None = None
    _round_start: float | None = None
    _cpu_start: float | None = None
    _cpu_clock: cpu_time.CpuClock = dataclasses.field(default_factory=cpu_time.CpuClock)

    def start(self) -> None:
        """Starts the clocks, after imports and loading data but before building."""
        self._cpu_start = self._cpu_clock.seconds()
        self._round_start = time.monotonic()

    def finish_round(
        self, get_weights: Callable[[], Sequence[np.ndarray]] | None
    ) -> bool:
        """Stops the clock for a round and starts the next one.

        Args:
          get_weights: Returns the server's weights in Keras' order and layout; called
            rarely and not timed.

        Returns:
          Whether to run another round.
        """
        now = time.monotonic()
        self.round_seconds.append(now - self._round_start)
        self.round_cpu_seconds.append(self._cpu_clock.seconds() - self._cpu_start)
        if self.start_up_seconds is None:
            self.start_up_seconds = now - self.process_start
        num_rounds = len(self.round_seconds)
        if num_rounds == CHECKED_ROUNDS and self.weights_path is not None:
            np.savez(self.weights_path, *get_weights())
        if num_rounds < CHECKED_ROUNDS:
            another = True
        else:
            spent = sum(self.round_seconds[1:])
            another = num_rounds < self.max_rounds and spent < self.seconds
        self.start()
        return another

    def result(self, workload: workloads.Workload) -> dict:
        """Returns the results of this workload for the benchmark."""
        return {
            "workload": workload.name,
            "start_up_seconds": self.start_up_seconds,
            "round_seconds": self.round_seconds,
            "round_cpu_seconds": self.round_cpu_seconds,
            "onednn": _onednn(),
        }


def _onednn() -> str | None:
    """Returns the environment's choice of oneDNN; None without TensorFlow."""
    if "tensorflow" not in sys.modules:
        return None
    return os.environ.get("TF_ENABLE_ONEDNN_OPTS", "unset")


Run = Callable[[workloads.Inputs, Recorder, argparse.Namespace], None]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Trains workloads and times it.")
    parser.add_argument("--inputs", required=True, nargs="+", help="files of workloads")
    parser.add_argument("--result", required=True, help="JSON file to write")
    parser.add_argument("--weights", help="file for the first workload's weights")
    parser.add_argument("--seconds", type=float, default=2.0, help="time of rounds")
    parser.add_argument("--max_rounds", type=int, default=30)
    parser.add_argument(
        "--limit_seconds",
        type=float,
        default=float("inf"),
        help="start no workload that would probably end later than that",
    )
    parser.add_argument(
        "--process_start",
        type=float,
        default=time.monotonic(),
        help="time.monotonic() just before this process was started",
    )
    return parser


def _runs_all(run: Run, arguments: argparse.Namespace) -> list[dict]:
    results = []
    for path in arguments.inputs:
        elapsed = time.monotonic() - arguments.process_start
        if results:
            rounds = results[-1]["round_seconds"]
            expected = rounds[0] + _GROWTH * statistics.median(rounds[1:])
            if elapsed + expected > arguments.limit_seconds:
                break
        recorder = Recorder(
            seconds=arguments.seconds,
            max_rounds=arguments.max_rounds,
            weights_path=arguments.weights if not results else None,
            process_start=arguments.process_start,
        )
        inputs = workloads.load(path)
        run(inputs, recorder, arguments)
        results.append(recorder.result(inputs.workload))
    return results


def _write(path: str, content: dict) -> None:
    partial = pathlib.Path(f"{path}.partial")
    partial.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")
    os.replace(partial, path)


def main(
    run: Run, add_arguments: Callable[[argparse.ArgumentParser], None] | None = None
) -> None:
    """Runs an engine: reads the arguments, trains, writes the result.

    Args:
      run: Trains one workload, calling the recorder: `start`, then
        `finish_round` after every round until that returns false.
      add_arguments: Adds the engine's own arguments to the parser.
    """
    parser = _parser()
    if add_arguments is not None:
        add_arguments(parser)
    arguments = parser.parse_args()
    try:
        results = _runs_all(run, arguments)
    except NotAvailableError as error:
        _write(arguments.result, {"error": str(error)})
        sys.exit(1)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        _write(arguments.result, {"error": reason})
        raise
    _write(arguments.result, {"results": results})
