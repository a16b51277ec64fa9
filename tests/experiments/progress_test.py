"""What a run shows while it trains, on a terminal and without one."""

import contextlib
import fcntl
import io
import math
import os
import pty
import re
import struct
import termios
import time

import numpy as np
import pytest

from tff_algos.experiments import progress as progress_module
from tff_algos.experiments.progress import Progress


def test_progress_without_a_terminal_is_one_line_per_step():
    stream = io.StringIO()
    with Progress(10, done=4, stream=stream) as progress:
        progress.advance("fedavg", {"train/loss": np.float32(1.25), "other": 3})
        progress.advance("fedavg", {"eval/accuracy": 0.5}, steps=2)
    first, second = stream.getvalue().splitlines()
    assert first.startswith("fedavg: round 5/10  loss 1.25  ")
    assert second.startswith("fedavg: round 7/10  held-out accuracy 50.00 %  ")
    assert "rounds/s" in first and "ETA 0:0" in first


@pytest.mark.parametrize(
    ("excluded", "note"),
    [(0, "no loss: no client reported"), (3, "no loss: every update was excluded")],
)
def test_progress_says_why_there_is_no_loss(excluded, note):
    stream = io.StringIO()
    row = {
        "train/loss": math.nan,
        "train/accuracy": math.nan,
        "train/num_examples": 0,
        "num_non_finite_clients": excluded,
        "eval/accuracy": 0.5,
    }
    with Progress(3, stream=stream) as progress:
        progress.advance("fedavg", row)
    expected = f"fedavg: round 1/3  {note}  held-out accuracy 50.00 %  "
    assert stream.getvalue().startswith(expected)


def test_a_loss_that_overflowed_is_shown():
    stream = io.StringIO()
    with Progress(1, stream=stream) as progress:
        progress.advance("fedavg", {"train/loss": math.nan, "train/num_examples": 5})
    assert "loss nan" in stream.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True


ROW = {"train/loss": 1.38719, "train/accuracy": 0.658, "eval/accuracy": 0.4403}


def test_progress_on_a_terminal_is_a_bar():
    stream = Terminal()
    with Progress(3, stream=stream) as progress:
        for _ in range(3):
            progress.advance("fedavg", {"train/loss": 0.5})
    assert "fedavg 3/3 |" in stream.getvalue()
    assert "loss 0.5" in stream.getvalue()


@pytest.fixture
def size():
    return 24, 80


@pytest.fixture
def terminal(size):
    """Both ends of a terminal: what a program writes to, and the screen."""
    screen, program = pty.openpty()
    fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    with os.fdopen(program, "w") as stream:
        yield stream, screen
    os.close(screen)


def everything_written(stream, screen):
    """Returns what reached the screen; a single read may come before the last of it."""
    stream.close()
    parts = []
    with contextlib.suppress(OSError):  # The end: nobody writes to the terminal.
        while part := os.read(screen, 4096):
            parts.append(part)
    return b"".join(parts).decode()


def test_a_bar_of_80_columns_has_room_for_everything(terminal):
    stream, screen = terminal
    with Progress(30, stream=stream) as progress:
        progress.advance("fedmeta_uga", ROW)
        progress.advance("fedmeta_uga", {"train/loss": 1.25, "train/accuracy": 0.7})
    written = everything_written(stream, screen)
    last = written.rstrip("\r\n").split("\r")[-1].rstrip()
    assert 70 <= len(last) <= 80, last
    assert last.startswith("fedmeta_uga 2/30 |")
    # The latest evaluation stays, and the bar is one.
    assert re.search(r"loss 1.25, train 70.0%, held-out 44.0%, ETA \d", last), last
    assert last.count("|") == 2 and len(last.split("|")[1]) >= 8, last


@pytest.mark.parametrize(("size", "shown"), [((24, 80), False), ((24, 110), True)])
def test_the_rate_is_shown_where_there_is_room(terminal, shown):
    stream, screen = terminal
    with Progress(30, stream=stream) as progress:
        progress.advance("fedmeta_uga", ROW)
    last = everything_written(stream, screen).rstrip("\r\n").split("\r")[-1].rstrip()
    assert bool(re.search(r"held-out 44.0%, [\d.e+]+ rounds/s, ETA \d", last)) == shown
    assert "train 65.8%" in last


@pytest.mark.parametrize("size", [(0, 0), (0, 80)])
def test_a_terminal_that_reports_no_size_gets_lines(terminal):
    stream, screen = terminal
    with Progress(30, stream=stream) as progress:
        progress.advance("fedavg", ROW)
    written = everything_written(stream, screen)
    assert written.startswith("fedavg: round 1/30  loss 1.387  accuracy 65.80 %  ")


def test_a_bar_that_also_shows_epsilon_ends_with_the_eta(terminal):
    stream, screen = terminal
    with Progress(30, stream=stream) as progress:
        progress.advance("fedavg", {**ROW, "eval/accuracy": 1.0, "epsilon": 5.5678})
    written = everything_written(stream, screen)
    last = written.rstrip("\r\n").split("\r")[-1].rstrip()
    assert len(last) <= 80, last
    assert re.search(
        r"\| loss 1\.387, held-out 100\.0%, epsilon 5\.568, ETA [\d:]+$", last
    ), last


def test_a_long_step_gives_signs_of_life(monkeypatch):
    monkeypatch.setattr(progress_module, "_FIRST_SIGN", 0.3)
    stream = io.StringIO()
    with Progress(2, stream=stream):
        time.sleep(1.3)
    lines = stream.getvalue().splitlines()
    assert [line.split(" for ")[0] for line in lines] == [
        "round 1/2 has been running"
    ] * len(lines)
    # At 0.3 and 0.6 seconds, and perhaps at 1.2.
    assert 2 <= len(lines) <= 3


def test_before_the_first_step_a_bar_shows_the_time_that_passes(terminal):
    stream, screen = terminal
    with Progress(30, stream=stream):
        time.sleep(2.2)
    frames = everything_written(stream, screen).rstrip("\r\n").split("\r")
    assert re.search(r"^0/30 \|.*\| 00:02, ETA \?$", frames[-1].rstrip()), frames
    assert len(frames) >= 3


def test_what_remains_follows_from_the_steps(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    progress = Progress(10, done=4, stream=io.StringIO())
    assert progress.remaining_seconds is None and progress.remaining_in_step is None
    for seconds in (20.0, 10.0):
        now[0] += seconds
        progress.advance("fedavg", {})
    assert progress.remaining_seconds == 4 * 15.0
    now[0] += 4.0
    assert progress.remaining_in_step == 6.0


def test_what_remains_of_the_first_step_follows_from_what_was_expected(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    progress = Progress(3, done=1, stream=io.StringIO(), work=[5.0, 1.0, 3.0])
    progress.expect(79.0)
    assert progress.remaining_in_step is None
    progress.expect(80.0)
    now[0] += 5.0
    assert progress.remaining_in_step == 15.0
    # It also compiles: nobody knows how long.
    now[0] += 15.0
    assert progress.remaining_in_step is None
    now[0] += 10.0
    progress.advance("fedavg", {})
    now[0] += 4.0
    assert progress.remaining_in_step == 26.0


def test_steps_of_less_work_are_expected_to_take_less_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    progress = Progress(6, done=1, stream=stream, work=[330, 330, 330, 50, 50, 10])
    now[0] = 66.0
    progress.advance("fedavg", {})
    assert progress.remaining_seconds == (330 + 50 + 50 + 10) * 66.0 / 330
    assert stream.getvalue().rstrip().endswith("ETA 1:28")


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.4, "0:00"), (75, "1:15"), (4000, "1:06:40")]
)
def test_durations_are_clocks(seconds, expected):
    assert progress_module.clock(seconds) == expected
