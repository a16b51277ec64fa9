"""Shows the progress of a run."""

import math
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, TextIO

import tqdm.auto

_SHOWN = {
    "train/loss": "loss",
    "train/accuracy": "accuracy",
    "eval/accuracy": "held-out accuracy",
}


class Progress:
    """A bar on a terminal or in a notebook, else a line per step; a context manager.

    Args:
      total: The total number of steps.
      done: Steps completed before (by a resumed run).
      unit: The name of a step.
      stream: The output stream; standard error by default.
    """

    def __init__(
        self,
        total: int,
        done: int = 0,
        unit: str = "round",
        stream: TextIO | None = None,
    ) -> None:
        self._stream = stream or sys.stderr
        self._total, self._done, self._first = total, done, done
        self._unit = unit
        self._start = time.monotonic()
        self._bar = None
        # In a notebook tqdm draws a bar of its own.
        if self._stream.isatty() or "ipykernel" in sys.modules:
            self._bar = tqdm.auto.tqdm(
                total=total, initial=done, unit=unit, file=self._stream
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, title: str, metrics: Mapping[str, Any], steps: int = 1) -> None:
        """Shows that `steps` more steps are done, with the most important metrics."""
        self._done += steps
        shown = {
            label: f"{float(metrics[name]):.4f}"
            for name, label in _SHOWN.items()
            if name in metrics and not _is_empty_mean(name, metrics)
        }
        note = ""
        if _is_empty_mean("train/loss", metrics):
            excluded = metrics.get("num_non_finite_clients", 0) > 0
            note = "no loss: "
            note += "every update was excluded" if excluded else "no client reported"
        if self._bar is not None:
            self._bar.set_description(title)
            self._bar.set_postfix({"note": note, **shown} if note else shown)
            self._bar.update(steps)
            return
        elapsed = time.monotonic() - self._start
        rate = (self._done - self._first) / max(elapsed, 1e-9)
        remaining = (self._total - self._done) / rate
        words = [
            f"{title}: {self._unit} {self._done}/{self._total}",
            *filter(None, [note]),
            *(f"{label} {value}" for label, value in shown.items()),
            f"{rate:.3g} {self._unit}s/s",
            f"ETA {_clock(remaining)}",
        ]
        print("  ".join(words), file=self._stream, flush=True)


def _is_empty_mean(name: str, metrics: Mapping[str, Any]) -> bool:
    """Returns whether a metric has no value because there was nothing to average."""
    group = name.rpartition("/")[0]
    return metrics.get(f"{group}/num_examples") == 0 and math.isnan(
        metrics.get(name, 0)
    )


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
    )
