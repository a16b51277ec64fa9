"""MIFA: NumPy's rounds, uniform FedAvg if everybody comes."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.testing import problems, remembering_identities, remembering_rounds
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


def metrics_of(process):
    return process.next.type_signature.result.metrics.member


def test_mifa_measures_whom_it_has_seen():
    measured = metrics_of(process("mifa")).aggregator
    assert measured.num_seen_clients.dtype == np.int32
    assert measured.num_non_finite_clients.dtype == np.int32
