"""MIFA: NumPy's rounds, uniform FedAvg if everybody comes."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.testing import problems, remembering_identities, remembering_rounds
from tests.testing.remembering_cohorts import Training
from tests.testing.remembering_identities import after, assert_differ
from tests.testing.remembering_processes import (
    NUM_CLIENTS,
    RATE,
    cohort,
    process,
    some_rounds,
)
from tests.testing.remembering_rounds import COHORTS, rounds, trained

START = problems.initial_vector()
UNIFORM = tff.learning.ClientWeighting.UNIFORM


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_mifas_rounds_are_numpys(decay):
    changes = {} if decay == 1.0 else {"client_learning_rate_decay": decay}
    w, table = START, np.zeros([NUM_CLIENTS, 6])
    for number, (training, output) in enumerate(rounds(process("mifa", **changes))):
        for k in COHORTS[number]:
            table[k] = w - trained(k, w, RATE * decay**number)
        w = w - np.mean(table, axis=0)
        remembering_rounds.assert_close(training.weights, w)
        # As if the old updates had been made at the rate of today.
        table *= decay
    seen = set().union(*COHORTS)
    assert output.metrics["aggregator"]["num_seen_clients"] == len(seen)


def test_mifa_of_all_clients_is_uniform_fedavg():
    data = cohort(range(NUM_CLIENTS))
    fedavg = process("fedavg", client_weighting=UNIFORM)
    remembering_identities.assert_close(
        after(process("mifa"), data, data), after(fedavg, data, data)
    )
    some = some_rounds()
    assert_differ(after(process("mifa"), *some), after(fedavg, *some))


def test_mifas_only_client_sets_the_server_model():
    data = cohort([0])
    expected = START
    for _ in range(2):
        expected = trained(0, expected)
    remembering_identities.assert_close(
        after(process("mifa", num_clients=1), data, data), expected
    )


def test_with_a_server_rate_of_zero_mifa_keeps_the_model_and_fills_its_table():
    still = process("mifa", server_optimizer_fn=tff.learning.optimizers.build_sgdm(0.0))
    training = Training(still, NUM_CLIENTS)
    for data in (cohort((0, 2)), cohort((2, 3))):
        output = training.round(data)
    np.testing.assert_array_equal(training.weights, START)
    assert output.metrics["aggregator"]["num_seen_clients"] == 3
    # The mean of deltas that all start from the same weights.
    deltas = [START - trained(k, START) for k in (0, 2, 3)]
    held = output.metrics["finalizer"]["update_norm"]
    expected = np.linalg.norm(np.sum(deltas, axis=0) / NUM_CLIENTS)
    assert held == pytest.approx(expected, rel=1e-6)


def metrics_of(process):
    return process.next.type_signature.result.metrics.member


def test_mifa_measures_whom_it_has_seen():
    measured = metrics_of(process("mifa")).aggregator
    assert measured.num_seen_clients.dtype == np.int32
    assert measured.num_non_finite_clients.dtype == np.int32
