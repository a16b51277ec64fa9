"""What a run shows while it trains, on a terminal and without one."""

import io
import math

import numpy as np
import pytest

from tff_algos.experiments.progress import Progress


def test_progress_without_a_terminal_is_one_line_per_step():
    stream = io.StringIO()
    with Progress(10, done=4, stream=stream) as progress:
        progress.advance("fedavg", {"train/loss": np.float32(1.25), "other": 3})
        progress.advance("fedavg", {"eval/accuracy": 0.5}, steps=2)
    first, second = stream.getvalue().splitlines()
    assert first.startswith("fedavg: round 5/10  loss 1.2500  ")
    assert second.startswith("fedavg: round 7/10  held-out accuracy 0.5000  ")
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
    expected = f"fedavg: round 1/3  {note}  held-out accuracy 0.5000  "
    assert stream.getvalue().startswith(expected)


def test_a_loss_that_overflowed_is_shown():
    stream = io.StringIO()
    with Progress(1, stream=stream) as progress:
        progress.advance("fedavg", {"train/loss": math.nan, "train/num_examples": 5})
    assert "loss nan" in stream.getvalue()


def test_progress_on_a_terminal_is_a_bar():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    with Progress(3, stream=stream) as progress:
        for _ in range(3):
            progress.advance("fedavg", {"train/loss": 0.5})
    assert "fedavg: 100%" in stream.getvalue()
    assert "loss=0.5000" in stream.getvalue()
