"""The benchmark of algorithms: its rounds and its table.

No time is asserted.
"""

import pytest

from benchmarks import algorithms
from benchmarks.algorithms import Measured
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
        training = algorithms.Training(algorithm, algorithms.make_task("logistic"))
        assert all(training.run_round(number) > 0 for number in (1, 2))


def test_the_table_compares_adjacent_rounds_and_names_what_died():
    measured = Measured([3.0, 12.0, 6.0], [1.0, 6.0, 3.0], 700.4)
    table = algorithms.make_table({"cnn": {"gradma": measured, "moon": None}})
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n")
    ]
    passes = algorithms.PASSES["gradma"].reason
    assert rows[2] == [
        "cnn, gradma",
        "100",  # 6 s of 60 steps.
        "2.00 (2.00-3.00)",
        *["3", "3", "700", passes],
    ]
    assert rows[3][:3] == ["cnn, moon", "died", ""]
