"""APFL's client work: the decay of its rate, and weights in [0, 1]."""

import numpy as np

from tests.testing import problems
from tests.testing.personal_rounds import own_weights
from tests.testing.remembering_cohorts import Training
from tests.testing.remembering_identities import one_step_each
from tests.testing.remembering_processes import CLIENTS, NUM_CLIENTS, RATE, process

START = problems.initial_vector()


def test_the_rate_of_a_clients_own_model_decays():
    decaying = process("apfl", mixing=1.0, client_learning_rate_decay=0.5)
    training, v = Training(decaying, NUM_CLIENTS), START
    for rate in (RATE, RATE / 2):
        training.round(one_step_each((0,)))
        v = v - rate * CLIENTS[0].gradient(v)
        np.testing.assert_allclose(own_weights(training, 0), v, rtol=1e-8)


def test_learned_mixtures_stay_in_0_to_1():
    adaptive = process("apfl", adaptive_mixing=True)
    training = Training(adaptive, NUM_CLIENTS)
    for _ in range(2):
        training.round(one_step_each((0, 1)))
    # Weights far off make the slope of alpha large.
    training.set_weights(START[:-1] + 1e3, START[-1])
    training.round(one_step_each((0, 1)))
    found = {float(training.memory.row(k)["mixing"]) for k in (0, 1)}
    assert found <= {0.0, 1.0}
