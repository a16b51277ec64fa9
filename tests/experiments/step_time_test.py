"""A step's time is that of the gradient of the loss on a batch."""

import numpy as np
import pytest

import tasks
from tests.testing import tiny_task
from tff_algos.experiments import step_time


@pytest.mark.parametrize("steps", [[0.5, 0.25, 0.75], [8.0]])
def test_the_least_of_three_steps_counts_or_one_that_takes_long(monkeypatch, steps):
    # Between any two steps, a second passes.
    times = iter(np.cumsum([each for step in steps for each in (1.0, step)]))
    monkeypatch.setattr(step_time.time, "perf_counter", lambda: next(times))
    task = tiny_task.make()
    assert step_time.measure(task.model, task.examples("0", "train")) == min(steps)
    assert next(times, None) is None


def test_gradients_of_embeddings_count_as_well():
    task = tasks.load_task(
        "shakespeare", data_options=tasks.DataOptions(data="generated")
    )
    x, y = task.examples(task.train_client_ids[0], "train")
    assert 0 < step_time.measure(task.model, (x[:1], y[:1])) < 10
