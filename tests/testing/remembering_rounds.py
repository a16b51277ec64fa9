"""Rounds of algorithms that remember in plain NumPy: clients come and go."""

import functools

import numpy as np

from tests.testing import block_problems, problems
from tests.testing.remembering_cohorts import Training
from tests.testing.remembering_processes import (
    BATCH,
    BLOCK_CLIENTS,
    CLIENTS,
    EPOCHS,
    NUM_CLIENTS,
    RATE,
    cohort,
)

COHORTS = ((0, 1, 2), (3, 1), (0, 3, 6, 2), (1, 5))
SIZES = [len(client.y) for client in CLIENTS]


def assert_close(found, expected, rtol=1e-8, atol=1e-9):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def rounds(process, cohorts=COHORTS, model="linear"):
    """A process in training after each round, and the round's output."""
    training = Training(process, NUM_CLIENTS)
    for numbers in cohorts:
        output = training.round(cohort(numbers, model))
        yield training, output


def trained(number, start, rate=RATE, correction=lambda y: 0.0):
    """A client's weights after its local steps."""
    return CLIENTS[number].local_sgd(start, rate, BATCH, EPOCHS, correction)[0]


def num_steps(number):
    return EPOCHS * -(-SIZES[number] // BATCH)


def block_rounds(process, objective, clip=np.inf):
    """Asserts that clients' steps are those of NumPy.

    Args:
      process: The process.
      objective: `(the client's last weights or the server's, the server's, x, labels)
        -> (weights -> what its steps descend)`.
      clip: The largest norm of a gradient.

    Returns:
      The process in training, each client's last weights, and all gradients' norms.
    """
    w, last, norms = block_problems.initial_vector(), {}, []

    def step(previous, server, y, x, labels):
        gradient = block_problems.gradient(objective(previous, server, x, labels), y)
        norms.append(np.linalg.norm(gradient))
        return gradient * min(1.0, clip / norms[-1])

    for number, (training, _) in enumerate(rounds(process, model="blocks")):
        taking_part, models = COHORTS[number], {}
        for k in taking_part:
            models[k] = BLOCK_CLIENTS[k].local_sgd(
                w, RATE, BATCH, EPOCHS, functools.partial(step, last.get(k, w), w)
            )
        last |= models
        w = problems.mean(list(models.values()), [SIZES[k] for k in taking_part])
        assert_close(training.weights, w)
    return training, last, norms
