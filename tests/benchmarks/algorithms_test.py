"""The benchmark of algorithms: its rounds and its table.

No time is asserted.
"""

import numpy as np
import pytest
import tree

from benchmarks import algorithms
from benchmarks.algorithms import Measured, RoundTimes
from tff_algos import execution
from tff_algos.experiments import catalog


def test_passes_are_those_of_algorithms_in_the_catalog():
    assert set(algorithms.PASSES) <= set(catalog.ALGORITHMS)
    assert next(iter(algorithms.PASSES)) == "fedavg"


def test_models_have_the_sizes_of_the_literature():
    sizes = {
        name: sum(w.size for w in algorithms.make_model(name).initial_weights[0])
        for name in ("cnn", "logistic")
    }
    assert sizes == {"cnn": 1663370, "logistic": 7850}


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_rounds_train_with_and_without_memory(algorithm):
    with execution.in_process_context():
        training = algorithms.Training(algorithm, algorithms.make_task("logistic"), 1)
        weights = training._stage.process.get_model_weights
        before = weights(training._state).trainable[0]
        assert all(training.run_round(number) > 0 for number in (1, 2))
        assert not np.array_equal(weights(training._state).trainable[0], before)
    if algorithm == "scaffold":
        rows = [tree.flatten(training._memory.row(k)) for k in range(10)]
        assert all(np.any(row[-1]) for row in rows)


def test_the_table_divides_rounds_into_steps_and_the_rest():
    rounds = [RoundTimes(3.0, 12.0), RoundTimes(4.0, 40.0), RoundTimes(6.0, 24.0)]
    fed_avg = [RoundTimes(1.0, 4.0), RoundTimes(4.0, 13.0), RoundTimes(2.0, 8.0)]
    measured = Measured(rounds, fed_avg, 700.4)
    table = algorithms.make_table({"cnn": {"moon": measured, "gradma": None}})
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n")
    ]
    assert rows[2] == [
        "cnn, moon",
        "100",  # 18 s of 180 steps.
        "3.00 (3.00-4.00)",
        "1.67",  # Three forward passes and a backward pass of twice their time.
        "0",
        "3.00 (1.00-3.00)",
        "700",
        algorithms.PASSES["moon"].reason,
    ]
    assert rows[3][:5] == ["cnn, gradma", "died", "", "3.00", ""]
