"""Ditto's client work: who is excluded, and whose metrics are reported."""

import numpy as np

from tests.testing.remembering_cohorts import Training
from tests.testing.remembering_processes import NUM_CLIENTS, cohort, process


def test_a_client_whose_own_model_overflows_is_excluded_and_counted():
    """The penalty makes its steps diverge, those of the shared model do not."""
    training = Training(process("ditto", personal_strength=1e300), NUM_CLIENTS)
    training.round(cohort((0,)))
    output = training.round(cohort((0,)))
    assert output.metrics["client_work"]["num_non_finite_clients"] == 1
    assert output.metrics["client_work"]["memory"]["accepted"].tolist() == [False]


def test_metrics_are_those_of_the_shared_model():
    metrics = []
    for name in ("ditto", "fedavg"):
        training = Training(process(name), NUM_CLIENTS)
        training.round(cohort((0, 1)))
        output = training.round(cohort((0, 1)))
        metrics.append(output.metrics["client_work"]["train"]["loss"])
    np.testing.assert_array_equal(*metrics)
