"""Shows how far a comparison is: a table on a terminal, else a line per run."""

import os
import shutil
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TextIO

from tff_algos.experiments import outlook
from tff_algos.experiments.comparison.columns import ACCURACY, Results
from tff_algos.experiments.comparison.runs import LOG_FILE, Run
from tff_algos.experiments.errors import RunError
from tff_algos.experiments.figures import shortened
from tff_algos.experiments.metric_names import ROUND, SECONDS
from tff_algos.experiments.metrics_log import read_rows
from tff_algos.experiments.report import text_table

_SECONDS_BETWEEN = 2.0
_LEAST_LABEL = 12  # characters
_MOST_SHOWN = 3  # accuracies of a row


class LiveTable:
    """A line for each row, drawn anew every two seconds; a context manager.

    Args:
      runs: All runs.
      stream: The output stream; standard error by default.
      redraw: Whether there is a table that is drawn anew, which runs that print to the
        same terminal would tear apart; otherwise a line says which run has ended.
    """

    def __init__(
        self, runs: Sequence[Run], stream: TextIO | None = None, redraw: bool = True
    ) -> None:
        self._runs = runs
        self._stream = stream or sys.stderr
        self._redraw = redraw and self._stream.isatty()
        self._ended: dict[Run, Results | None] = {}
        self._notes: list[str] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._height = 0
        self._thread = threading.Thread(target=self._draw_repeatedly, daemon=True)

    def __enter__(self) -> Self:
        if self._redraw:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
            self._draw(whole=True)

    def ended(self, run: Run, results: Results | None) -> None:
        """Shows that a run has ended; with results None, that it failed."""
        with self._lock:
            self._ended[run] = results
        if not self._redraw:
            done = f"{len(self._ended)}/{len(self._runs)}"
            how = "done" if results is not None else "failed"
            print(
                f"{done} {run.row.label}, seed {run.seed}: {how}",
                file=self._stream,
                flush=True,
            )

    def note(self, text: str) -> None:
        """Shows a line until the end, below the table."""
        with self._lock:
            self._notes.append(text)
        if not self._redraw:
            print(text, file=self._stream, flush=True)
        elif self._thread.is_alive():
            self._draw()

    def stopping(self) -> None:
        """Shows that the comparison stops, and about how long its current rounds take."""
        with self._lock:
            ended = set(self._ended)
        left = [run for run in self._runs if run not in ended and not run.is_done]
        begun = [_latest(run) for run in left if (run.folder / LOG_FILE).exists()]
        about = ""
        if begun and all(begun):
            longest = max(rows[-1][SECONDS] for rows in begun)
            about = f" ({outlook.rough_duration(longest)})"
        self.note(
            f"stopping after the current rounds{about}, which will be saved; press "
            "Ctrl-C again, or send another signal, to stop now."
        )

    def lines(self, whole: bool = False) -> list[str]:
        """Returns the table's lines and the notes, as far as the terminal has room.

        Args:
          whole: Whether to return all lines, none of which is drawn over later.
        """
        table = [("", "done", "running", "held-out accuracy")]
        for row in dict.fromkeys(run.row for run in self._runs):
            runs = [run for run in self._runs if run.row == row]
            with self._lock:
                ended = {run: self._ended[run] for run in runs if run in self._ended}
            failed = sum(results is None for results in ended.values())
            done = f"{len(ended) - failed}/{len(runs)}"
            done += f", {failed} failed" if failed else ""
            latest = [(run, _latest(run)) for run in runs if run not in ended]
            curves = [r.rows for r in ended.values() if r is not None]
            curves += [rows for _, rows in latest if rows]
            table.append((row.label, done, _running(latest), _accuracies(curves)))
        width, height = self._size()
        with self._lock:
            table = text_table(_with_short_labels(table, width), indent="")
            lines = [*table.splitlines(), *self._notes]
        # The cursor cannot return to lines that have left the terminal.
        if len(lines) >= height and not whole:
            shown = max(height - 2, 1)
            lines = [*lines[:shown], f"... and {len(lines) - shown} more lines"]
        return [line[:width] for line in lines]

    def _draw_repeatedly(self) -> None:
        while not self._stop.wait(_SECONDS_BETWEEN):
            self._draw()

    def _size(self) -> tuple[int, int]:
        """Returns the columns and lines of the terminal that the stream goes to."""
        try:
            found = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            found = ()
        return shutil.get_terminal_size(found or (80, 24))

    def _draw(self, whole: bool = False) -> None:
        lines = self.lines(whole)
        with self._lock:
            # Up to the first line of the table drawn before, and clear what is below.
            above = f"\x1b[{self._height}F\x1b[J" if self._height else ""
            print(above + "\n".join(lines), file=self._stream, flush=True)
            self._height = len(lines)


def _with_short_labels(
    table: Sequence[tuple[str, ...]], width: int
) -> list[tuple[str, ...]]:
    """Returns the table with labels that leave its other columns room in a terminal."""
    others = zip(*(line[1:] for line in table), strict=True)
    room = width - sum(2 + max(map(len, column)) for column in others)
    most = max(room, _LEAST_LABEL)
    return [(shortened(label, most), *rest) for label, *rest in table]


def _latest(run: Run) -> Sequence[dict]:
    """Returns the rows that a run has written so far."""
    try:
        return read_rows(run.folder / "metrics.csv")
    except (OSError, RunError):
        return ()


def _running(latest: Sequence[tuple[Run, Sequence[dict]]]) -> str:
    """Says how far the first run is that has begun and not ended."""
    for run, rows in latest:
        if rows:
            return f"seed {run.seed}, round {rows[-1][ROUND]}"
    started = [run for run, _ in latest if (run.folder / LOG_FILE).exists()]
    return f"seed {started[0].seed}, starting" if started else ""


def _accuracies(curves: Sequence[Sequence[dict]]) -> str:
    """Returns the latest accuracy of each run; of many runs, their range."""
    series = ([line[ACCURACY] for line in rows if ACCURACY in line] for rows in curves)
    latest = [values[-1] for values in series if values]
    if len(latest) > _MOST_SHOWN:
        return f"{100 * min(latest):.1f} to {100 * max(latest):.1f} %"
    return ", ".join(f"{100 * value:.1f} %" for value in latest)
