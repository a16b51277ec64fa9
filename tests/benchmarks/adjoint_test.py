"""The benchmark of gradients through training: its methods and its table.

No time is asserted.
"""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import adjoint
from benchmarks.adjoint import Comparison, Measurement


@pytest.fixture(scope="module")
def problem():
    return adjoint.make_problem("2nn", batch_size=4)


def _difference(tensors, expected):
    return max(
        np.max(np.abs(np.asarray(own) - np.asarray(other)))
        for own, other in zip(tensors, expected, strict=True)
    )


@pytest.mark.parametrize("method", ["trajectory", "checkpoints"])
def test_all_ways_give_the_gradient_of_the_tape(problem, method):
    found = adjoint.METHODS[method](problem, 5)()
    expected = adjoint.METHODS["tape"](problem, 5)()
    assert _difference(found, expected) < 1e-6 < max(map(np.max, expected))


def _gradient(problem, weights):
    x, y = problem.batch
    with tf.GradientTape() as tape:
        tape.watch(weights)
        output = problem.model.predict_on_batch((weights, ()), x, training=True)
        value = problem.model.loss(output=output, label=y)
    return tape.gradient(value, weights)


def test_federated_averaging_takes_one_step_more_than_there_are_steps_to_go_back(
    problem,
):
    weights = problem.start
    for _ in range(4):
        gradients = _gradient(problem, weights)
        weights = [w - 0.02 * g for w, g in zip(weights, gradients, strict=True)]
    expected = [a - b for a, b in zip(problem.start, weights, strict=True)]
    assert _difference(adjoint.METHODS["fedavg"](problem, 3)(), expected) < 1e-6


@pytest.mark.parametrize(
    ("model", "x_shape", "y_shape", "num_weights"),
    [
        ("cnn", (3, 28, 28, 1), (3,), 1663370),
        ("lstm", (3, 80), (3, 80), 820522),
    ],
)
def test_problems_are_the_models_of_the_tasks(model, x_shape, y_shape, num_weights):
    problem = adjoint.make_problem(model, batch_size=3)
    x, y = problem.batch
    assert x.shape == x_shape and y.shape == y_shape
    assert sum(int(tf.size(weight)) for weight in problem.start) == num_weights
    if x.dtype == tf.int32:
        assert tf.reduce_min(x) >= 1  # No padding.


def _measurement(seconds, megabytes=10.0):
    cpu_seconds = [seconds**2, seconds**2 + 1]
    return Measurement(9.0, [seconds + 1, seconds], cpu_seconds, [megabytes] * 3)


def _cells(table):
    header, _, *rows = table.splitlines()
    cells = [[c.strip() for c in r.strip("|").split("|")] for r in (header, *rows)]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]


def test_the_table_compares_time_with_fedavg_and_memory_with_the_tape():
    measurements = {
        "fedavg": _measurement(2.0),
        "trajectory": _measurement(6.0, 30.0),
        "checkpoints": _measurement(8.0, 20.0),
        "tape": _measurement(4.0, 40.0),
    }
    (row,) = _cells(adjoint.make_table([Comparison(4, measurements, {})]))
    assert row["J"] == "4" and row["trajectory s"] == "6.00"
    assert row["trajectory / fedavg"] == "3.00"
    assert row["checkpoints / fedavg"] == "4.00"
    assert row["tape / fedavg"] == "2.00"
    assert row["trajectory CPU s"] == "36.0"
    assert row["trajectory / fedavg, CPU"] == "9.00"
    assert row["trajectory / tape, MB"] == "0.750"
    assert row["checkpoints / tape, MB"] == "0.500"
    assert row["tape first s"] == "9.00"


def test_what_died_is_told_beside_what_did_not():
    measurements = {
        "fedavg": _measurement(2.0),
        "trajectory": _measurement(6.0),
        "checkpoints": _measurement(8.0),
        "tape": None,
    }
    (row,) = _cells(adjoint.make_table([Comparison(64, measurements, {})]))
    assert row["tape s"] == row["trajectory / tape, MB"] == "died"
    assert row["trajectory / fedavg"] == "3.00"


class _Worker:
    """Stands for a process: the tape's dies when its memory is measured."""

    def __init__(self, serve, method, model, batch_size, num_steps):
        self._method = method
        self.requests = []

    def receive(self):
        return [np.array([3.0, 4.0]) + (self._method == "checkpoints")], 5.0

    def ask(self, request):
        if request == "memory" and self._method == "tape":
            return None
        self.requests.append(request)
        answer = float(len(self.requests))
        return answer if request == "memory" else (answer, 10 * answer)

    def close(self):
        pass


def test_a_process_that_dies_takes_no_other_with_it(monkeypatch):
    monkeypatch.setattr(adjoint, "Worker", _Worker)
    found = adjoint.compare("2nn", 4, num_steps=2, repetitions=2)
    assert found.measurements["tape"] is None
    ours = found.measurements["trajectory"]
    assert ours == Measurement(5.0, (1.0, 2.0), (10.0, 20.0), [3.0, 4.0, 5.0])
    assert ours.best_seconds == 1.0 and ours.median_megabytes == 4.0
    assert found.differences == {
        "trajectory": 0.0,
        "checkpoints": pytest.approx(2**0.5 / 5),
    }


@pytest.mark.slow
def test_measuring_in_processes(monkeypatch):
    for name, value in adjoint.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    found = adjoint.compare("2nn", 2, num_steps=4, repetitions=1)
    assert max(found.differences.values()) < 1e-5
    megabytes = {
        method: measurement.median_megabytes
        for method, measurement in found.measurements.items()
    }
    # The weights are 0.76 MB: in any case there are these and a gradient.
    assert 1.5 < megabytes["fedavg"] < megabytes["trajectory"] < 100
    assert all(m.best_seconds > 0 for m in found.measurements.values())
