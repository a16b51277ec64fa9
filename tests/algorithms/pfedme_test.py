"""pFedMe: NumPy's rounds, exact proximal points, the server's mixture."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.testing import numpy_rounds, problems, remembering_rounds
from tests.testing.personal_rounds import batch_rows, own_weights, predicting
from tests.testing.remembering_cohorts import run
from tests.testing.remembering_identities import one_step_each
from tests.testing.remembering_processes import CLIENTS, NUM_CLIENTS, RATE, process
from tests.testing.remembering_rounds import COHORTS, rounds
from tff_algos.hyperparameters import HyperparameterError

START = problems.initial_vector()
STRENGTH, STEPS, PERSONAL_RATE = 2.0, 3, 0.2


def _trained(client, w):
    """Returns y and theta after the local steps of a client."""
    y, theta = w, w
    for rows in batch_rows(client):
        for _ in range(STEPS):
            slope = CLIENTS[client].gradient(theta, rows) + STRENGTH * (theta - y)
            theta = theta - PERSONAL_RATE * slope
        y = y - RATE * STRENGTH * (y - theta)
    return y, theta


@pytest.mark.parametrize("mix", [1.0, 0.5])
def test_rounds_are_numpys(mix):
    optimizer = tff.learning.optimizers.build_sgdm(mix)
    w = START
    mixing = process("pfedme", server_optimizer_fn=optimizer)
    for number, (training, _) in enumerate(rounds(mixing)):
        taking_part = COHORTS[number]
        own = {k: _trained(k, w) for k in taking_part}
        mean = np.mean([y for y, _ in own.values()], axis=0)
        w = (1 - mix) * w + mix * mean
        remembering_rounds.assert_close(training.weights, w)
        for k, (_, theta) in own.items():
            remembering_rounds.assert_close(own_weights(training, k), theta)
            remembering_rounds.assert_close(predicting(training, k), theta)


def test_many_steps_on_a_quadratic_reach_its_proximal_point():
    """With beta = 1 and eta * lambda = 1 the server's model is their mean."""
    strength = 1 / RATE
    exact = process(
        "pfedme",
        personal_strength=strength,
        personal_steps=1000,
        personal_learning_rate=0.05,
    )
    everybody = range(NUM_CLIENTS)
    training = run(exact, NUM_CLIENTS, one_step_each(everybody))
    points = []
    for k in everybody:
        hessian = numpy_rounds.hessian(CLIENTS[k])
        linear = -CLIENTS[k].gradient(np.zeros(6))
        shifted = hessian + strength * np.eye(6)
        points.append(np.linalg.solve(shifted, linear + strength * START))
        remembering_rounds.assert_close(own_weights(training, k), points[-1])
    remembering_rounds.assert_close(training.weights, np.mean(points, axis=0))
    assert np.max(np.abs(training.weights - START)) > 1e-2


@pytest.mark.parametrize(
    "bad", [{"personal_strength": 0.0}, {"personal_steps": 0}, {"mixing": 1}]
)
def test_what_it_cannot_use_is_refused(bad):
    (name,) = bad
    with pytest.raises((HyperparameterError, TypeError), match=name):
        process("pfedme", **bad)
