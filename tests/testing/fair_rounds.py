"""Rounds of fair algorithms on four clients, with their NumPy counterparts."""

import numpy as np
import tensorflow_federated as tff

from tests.testing import problems
from tests.testing.problems import f32

SGD = tff.learning.optimizers.build_sgdm
RATE, BATCH, EPOCHS, SERVER_RATE = 0.1, 2, 2, 0.5
CLIENTS = problems.clients(sizes=(6, 3, 7, 5))
SIZES = np.array([6, 3, 7, 5])


def cohort(clients=CLIENTS, epochs=EPOCHS, dtype=np.float64):
    return [client.batches(BATCH, epochs, dtype) for client in clients]


def delta_of(client, start, correction=lambda y: 0.0):
    """Start minus the client's locally trained weights."""
    trained, _ = client.local_sgd(start, f32(RATE), BATCH, EPOCHS, correction)
    return start - trained


def build(builder, **kwargs):
    return builder(problems.linear_model(), SGD(RATE), SGD(SERVER_RATE), **kwargs)


def assert_close(found, expected, rtol=1e-6, atol=1e-7):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def batch_losses(client, start, rate=0.0):
    """Mean losses and sizes of the batches, at the start or as it trains."""
    y, losses, sizes = start, [], []
    for first in list(range(0, len(client.y), BATCH)) * EPOCHS:
        rows = slice(first, first + BATCH)
        residual = client.x[rows] @ y[:-1] + y[-1] - client.y[rows]
        losses.append(np.mean(residual**2) / 2)
        sizes.append(len(residual))
        y = y - rate * client.gradient(y, rows)
    return np.array(losses), np.array(sizes)


def mean_loss(client, start, rate=0.0):
    losses, sizes = batch_losses(client, start, rate)
    return np.average(losses, weights=sizes)
