"""pFedMe's client work: its rate decays, its metrics are of the clients' models."""

import numpy as np

from tests.testing import problems
from tests.testing.remembering_cohorts import Training
from tests.testing.remembering_identities import one_step_each
from tests.testing.remembering_processes import CLIENTS, NUM_CLIENTS, RATE, process

START = problems.initial_vector()


def _theta(start):
    slope = CLIENTS[0].gradient(start)
    return start - 0.2 * slope


def _loss(client):
    residual = client.x @ START[:-1] + START[-1] - client.y
    return np.mean(residual**2) / 2


def test_the_rate_of_w_decays_and_that_of_theta_does_not():
    decaying = process("pfedme", personal_steps=1, client_learning_rate_decay=0.5)
    training, w = Training(decaying, NUM_CLIENTS), START
    for rate in (RATE, RATE / 2):
        training.round(one_step_each((0,)))
        w = w - rate * 2.0 * (w - _theta(w))
        np.testing.assert_allclose(training.weights, w, rtol=1e-8)


def test_every_example_is_counted_once_whatever_the_number_of_steps():
    training = Training(process("pfedme"), NUM_CLIENTS)
    output = training.round(one_step_each((0, 1)))
    train = output.metrics["client_work"]["train"]
    losses = [_loss(CLIENTS[k]) for k in (0, 1)]
    sizes = [len(CLIENTS[k].y) for k in (0, 1)]
    np.testing.assert_allclose(train["loss"], np.average(losses, weights=sizes))
