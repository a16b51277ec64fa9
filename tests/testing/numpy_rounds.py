"""Rounds of algorithms in plain NumPy, in float64, as a reference."""

import numpy as np

from tests.testing import problems
from tests.testing.problems import f32

RATE, BATCH, EPOCHS = 0.1, 2, 2
CLIENTS = problems.clients(sizes=(6, 3, 7))


def cohort(dtype=np.float64, clients=CLIENTS, epochs=EPOCHS):
    return [client.batches(BATCH, epochs, dtype) for client in clients]


def mean_delta(start, rate=RATE, uniform=False, correction=lambda start: None):
    """The mean of (start - locally trained), as a round of FedAvg takes it."""
    deltas, weights = [], []
    for client in CLIENTS:
        kwargs = {}
        if (term := correction(start)) is not None:
            kwargs["correction"] = term
        y, examples = client.local_sgd(start, f32(rate), BATCH, EPOCHS, **kwargs)
        deltas.append(start - y)
        weights.append(1 if uniform else examples)
    return problems.mean(deltas, weights)


def assert_exact(weights, expected):
    np.testing.assert_allclose(weights, expected, rtol=1e-9, atol=1e-10)


def assert_close(weights, expected):
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)


def adam(weights, gradients, rate=0.001):
    """Adam's weights after a step with each of the gradients in turn."""
    first = second = 0.0
    for step, gradient_fn in enumerate(gradients, start=1):
        gradient = gradient_fn(weights)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        scale = np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        weights = weights - rate * scale * first / (np.sqrt(second) + 1e-7)
    return weights


def hessian(client, rows=slice(None)):
    """Of linear regression's mean loss on some rows."""
    features = np.column_stack([client.x, np.ones(len(client.y))])[rows]
    return features.T @ features / len(features)


def through_training(client, start, rate, num_steps, query):
    """The gradient of the query's loss after SGD, back to `start`."""
    batches = [slice(i, i + BATCH) for i in range(0, len(client.y), BATCH)]
    support = [batches[j % len(batches)] for j in range(num_steps)]
    if query == "next_batch":
        query = batches[num_steps % len(batches)]
    y = start
    for rows in support:
        y = y - rate * client.gradient(y, rows)
    gradient = client.gradient(y, query)
    for rows in reversed(support):
        gradient = gradient - rate * hessian(client, rows) @ gradient
    return gradient
