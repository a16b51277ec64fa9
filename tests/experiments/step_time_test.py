"""A step's time is that of the gradient of the loss on a batch."""

import numpy as np
import pytest
import tf_keras

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


def test_more_examples_take_longer():
    task = tasks.load_task("mnist", data_options=tasks.DataOptions(data="generated"))
    x, y = task.examples(task.train_client_ids[0], "train")
    few, many = (
        step_time.measure(task.model, (np.repeat(x[:1], n, 0), np.repeat(y[:1], n)))
        for n in (1, 300)
    )
    assert many > 5 * few


def test_keras_models_that_tff_converts_are_timed():
    model = tf_keras.Sequential([tf_keras.layers.Dense(3, input_shape=[2])])
    task = tasks.from_arrays(
        np.ones([8, 2]), np.arange(8) % 3, np.arange(8) % 2, model=model
    )
    own = task.examples(task.train_client_ids[0], "train")
    assert 0 < step_time.measure(task.model, own) < 10


def test_gradients_of_embeddings_count_as_well():
    task = tasks.load_task(
        "shakespeare", data_options=tasks.DataOptions(data="generated")
    )
    x, y = task.examples(task.train_client_ids[0], "train")
    assert 0 < step_time.measure(task.model, (x[:1], y[:1])) < 10
