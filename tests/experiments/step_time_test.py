"""A step's time is that of the gradient of the loss on a batch."""

import numpy as np

import tasks
from tests.testing import tiny_task
from tff_algos.experiments import step_time


def test_a_step_is_timed_after_it_was_traced(monkeypatch):
    times = iter(np.cumsum([0, 5, 1, 3, 1, 4]))
    monkeypatch.setattr(step_time.time, "perf_counter", lambda: next(times))
    task = tiny_task.make()
    assert step_time.measure(task.model, task.examples("0", "train")) == 3


def test_gradients_of_embeddings_count_as_well():
    task = tasks.load_task(
        "shakespeare", data_options=tasks.DataOptions(data="generated")
    )
    x, y = task.examples(task.train_client_ids[0], "train")
    assert 0 < step_time.measure(task.model, (x[:1], y[:1])) < 10
