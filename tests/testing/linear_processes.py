"""Linear regression on four clients, for identities between algorithms."""

import numpy as np
import tensorflow_federated as tff

import tff_algos
from tests.testing import problems

SGD = tff.learning.optimizers.build_sgdm
CLIENTS = problems.clients(sizes=(6, 4, 7, 5))
EQUAL_CLIENTS = problems.clients(sizes=(6, 6, 6, 6))
META = (CLIENTS[1].x, CLIENTS[1].y)


def model(dtype=np.float64):
    return problems.linear_model(dtype)


def cohort(clients=CLIENTS, batch_size=2, epochs=1, dtype=np.float64):
    return [client.batches(batch_size, epochs, dtype) for client in clients]


def assert_same_bits(left, right, *cohorts):
    left_weights, _ = problems.run(left, *cohorts)
    right_weights, _ = problems.run(right, *cohorts)
    assert not np.array_equal(left_weights, problems.initial_vector())
    np.testing.assert_array_equal(left_weights, right_weights)


def assert_close(left, right, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(left, right, rtol=rtol, atol=atol)


def uga(rate=0.1, epochs=2, server=1.0, **kwargs):
    return tff_algos.build_unbiased_gradient_aggregation(
        model(),
        SGD(server),
        client_learning_rate=rate,
        client_epochs_per_round=epochs,
        **kwargs,
    )


def maml(steps, query="all", build=tff_algos.build_maml):
    return build(
        model(),
        SGD(1.0),
        client_learning_rate=0.1,
        client_steps_per_round=steps,
        query=query,
    )
