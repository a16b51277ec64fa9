"""Shows the progress of a run."""

import itertools
import math
import os
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TextIO

import tqdm.auto

_SHOWN = {
    "train/loss": "loss",
    "train/accuracy": "accuracy",
    "eval/accuracy": "held-out accuracy",
    "epsilon": "epsilon",
}
# Shorter words, so that all of them and a bar fit 80 columns.
_SHOWN_IN_BAR = {
    "train/loss": "loss",
    "train/accuracy": "train",
    "eval/accuracy": "held-out",
    "epsilon": "epsilon",
}
_BAR = "{{desc}} {{n_fmt}}/{{total_fmt}} |{{bar}}| {words}ETA {eta}"
_BAR_AT_FIRST = "{n_fmt}/{total_fmt} |{bar}| {elapsed}, ETA {remaining}"
# What leaves first, if the bar would have fewer columns than these.
_DISPENSABLE = types.MappingProxyType({"rate": 10, "train": 2, "loss": 2})
# Seconds that compilation may add to the first step.
_COMPILATION = 20.0
# Seconds into a step after which a log gets a sign of life; later ones double.
_FIRST_SIGN = 10.0


class Progress:
    """A bar on a terminal or in a notebook, else a line per step; a context manager.

    A terminal that reports no size gets lines too.

    During a step of many seconds, the bar's times go on, and a log gets lines that say
    so, at increasing intervals.

    Args:
      total: The total number of steps.
      done: Steps completed before (by a resumed run).
      unit: The name of a step.
      stream: The output stream; standard error by default.
      work: How much work each step is, compared with the others; by default all steps
        are alike. The time left is estimated accordingly.
    """

    def __init__(
        self,
        total: int,
        done: int = 0,
        unit: str = "round",
        stream: TextIO | None = None,
        work: Sequence[float] | None = None,
    ) -> None:
        self._stream = stream or sys.stderr
        self._total, self._done, self._first = total, done, done
        self._work = [1.0] * total if work is None else work
        # Up to each step.
        self._work_until = list(itertools.accumulate(self._work, initial=0.0))
        self._unit = unit
        self._start = self._step_start = time.monotonic()
        self._step_seconds: float | None = None
        self._expected_end: float | None = None
        self._latest: dict[str, str] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._signs = threading.Thread(target=self._show_signs_of_life, daemon=True)
        self._bar = None
        if _has_bar(self._stream):
            self._bar = tqdm.auto.tqdm(
                total=total,
                initial=done,
                unit=unit,
                file=self._stream,
                bar_format=_BAR_AT_FIRST,
                dynamic_ncols=True,
            )

    def __enter__(self) -> Self:
        self._signs.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._signs.join()
        if self._bar is not None:
            self._bar.close()

    @property
    def done(self) -> int:
        """How many steps have ended."""
        return self._done

    @property
    def remaining_seconds(self) -> float | None:
        """About how long the remaining steps take; None before the first has ended."""
        if self._done == self._first:
            return None
        elapsed = self._step_start - self._start
        work_done = self._work_until[self._done] - self._work_until[self._first]
        return self._work_left * elapsed / work_done

    @property
    def _work_left(self) -> float:
        return self._work_until[-1] - self._work_until[self._done]

    @property
    def remaining_in_step(self) -> float | None:
        """About how long the current step still takes; None if unknown."""
        if self._step_seconds is not None:
            return max(0.0, self._step_seconds - (time.monotonic() - self._step_start))
        if self._expected_end is None:
            return None
        # The first step also compiles, so it may take longer than expected.
        left = self._expected_end - time.monotonic()
        return left if left > 0 else None

    def expect(self, seconds: float) -> None:
        """Sets about how long the remaining steps take, until the first has ended.

        How long the first one takes is known only if it takes longer than compilation.
        """
        share = self._work[self._done] / self._work_left
        if share * seconds >= _COMPILATION:
            self._expected_end = time.monotonic() + share * seconds

    def note(self, line: str) -> None:
        """Prints a line above the bar."""
        with self._lock:
            if self._bar is not None:
                self._bar.write(line, file=self._stream)
            else:
                print(line, file=self._stream, flush=True)

    def advance(self, title: str, metrics: Mapping[str, Any], steps: int = 1) -> None:
        """Shows that `steps` more steps are done, with the most important metrics."""
        now = time.monotonic()
        self._step_seconds = now - self._step_start
        self._done += steps
        self._step_start = now
        per_second = (self._done - self._first) / max(now - self._start, 1e-9)
        rate = f"{per_second:.3g} {self._unit}s/s"
        note = ""
        if _is_empty_mean("train/loss", metrics):
            excluded = metrics.get("num_non_finite_clients", 0) > 0
            note = "no loss: "
            note += "every update was excluded" if excluded else "no client reported"
        if self._bar is not None:
            # Held-out metrics are not of every round: the latest ones stay.
            self._latest |= _shown(_SHOWN_IN_BAR, metrics, "{:.1f}%")
            words = self._fitting_words(title, rate)
            with self._lock:
                shown = [f"{each}, " for each in (*filter(None, [note]), *words)]
                self._bar.bar_format = _BAR.format(
                    words="".join(shown), eta=clock(self.remaining_seconds)
                )
                self._bar.set_description_str(title, refresh=False)
                self._bar.update(steps)
                self._bar.refresh()
            return
        shown = _shown(_SHOWN, metrics, "{:.2f} %")
        words = [
            f"{title}: {self._unit} {self._done}/{self._total}",
            *filter(None, [note]),
            *(f"{label} {value}" for label, value in shown.items()),
            rate,
            f"ETA {clock(self.remaining_seconds)}",
        ]
        self.note("  ".join(words))

    def _fitting_words(self, title: str, rate: str) -> list[str]:
        """Returns the latest metrics and the rate; tqdm would cut what is last, the ETA."""
        words = {name: f"{name} {value}" for name, value in self._latest.items()}
        words["rate"] = rate
        columns = self._bar.ncols or sys.maxsize
        others = f"{title} {self._total}/{self._total} ||,  ETA 0:00:00"
        for name, least_bar in _DISPENSABLE.items():
            if len(others) + least_bar + len(", ".join(words.values())) <= columns:
                break
            words.pop(name, None)
        return list(words.values())

    def _show_signs_of_life(self) -> None:
        if self._bar is not None:
            while not self._ended.wait(1.0):
                with self._lock:
                    self._bar.refresh()
            return
        step, sign = self._done, _FIRST_SIGN
        while not self._ended.wait(0.2):
            if step != self._done:
                step, sign = self._done, _FIRST_SIGN
            elapsed = time.monotonic() - self._step_start
            if elapsed >= sign and self._done < self._total:
                name = f"{self._unit} {self._done + 1}/{self._total}"
                self.note(f"{name} has been running for {clock(elapsed)}")
                sign *= 2


def _has_bar(stream: TextIO) -> bool:
    """Returns whether tqdm can draw a bar on a stream."""
    if "ipykernel" in sys.modules:
        return True  # One of the notebook's own.
    if not stream.isatty():
        return False
    try:
        # Some terminals, such as those of containers, report 0; tqdm then draws nothing.
        return min(os.get_terminal_size(stream.fileno())) > 0
    except OSError:
        return True  # A terminal without a file descriptor: tqdm assumes a size.


def _shown(
    labels: Mapping[str, str], metrics: Mapping[str, Any], per_cent: str
) -> dict[str, str]:
    """Returns what to show of a step's metrics: losses, and accuracies in percent."""
    found = {}
    for name, label in labels.items():
        if name in metrics and not _is_empty_mean(name, metrics):
            value = float(metrics[name])
            is_share = name.endswith("accuracy")
            found[label] = per_cent.format(100 * value) if is_share else f"{value:.4g}"
    return found


def _is_empty_mean(name: str, metrics: Mapping[str, Any]) -> bool:
    """Returns whether a metric has no value because there was nothing to average."""
    group = name.rpartition("/")[0]
    return metrics.get(f"{group}/num_examples") == 0 and math.isnan(
        metrics.get(name, 0)
    )


def clock(seconds: float) -> str:
    """Returns a duration as minutes and seconds, with hours where there are any."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
    )
