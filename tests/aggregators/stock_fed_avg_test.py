"""Every aggregator by itself inside of TFF's own FedAvg, on both runtimes."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.testing import equivalence, problems
from tff_algos import aggregators
from tff_algos.models.variable_model import FunctionalVariableModel

SGD = tff.learning.optimizers.build_sgdm
CLIENTS = problems.clients(sizes=(6, 3, 7))
START = problems.initial_vector(np.float32)

FACTORIES = {
    "min norm": lambda: aggregators.MinNormFactory(),
    "min norm of directions in a box": lambda: aggregators.MinNormFactory(
        0.1, normalize=True
    ),
    "normalized mean": aggregators.NormalizedMeanFactory,
    "q-fair": lambda: aggregators.QFairFactory(1.0, 10.0),
    "without invalid clients": aggregators.ExcludeNonFiniteFactory,
    "measured": lambda: tff.aggregators.add_measurements(
        tff.aggregators.clipping_factory(
            0.5, tff.aggregators.zeroing_factory(9.0, aggregators.MinNormFactory())
        ),
        server_measurement_fn=lambda result: {"first": result[0]},
    ),
}


def model_fn():
    return FunctionalVariableModel(problems.linear_model(np.float32))


def build(factory):
    return tff.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        SGD(0.1),
        client_weighting=tff.learning.ClientWeighting.UNIFORM,
        model_aggregator=factory,
    )


def updates_of(start):
    """What the clients' training comes to, in float64."""
    return np.array(
        [start - client.local_sgd(start, 0.1, 2, 1)[0] for client in CLIENTS]
    )


@pytest.mark.parametrize("name", FACTORIES)
def test_both_runtimes_give_the_same_rounds(name):
    data = [client.batches(2, 1, np.float32) for client in CLIENTS]
    process = build(FACTORIES[name]())
    outputs = equivalence.assert_same_rounds(
        process, [data], [data], rtol=1e-4, atol=1e-5
    )
    weights = outputs[-1].state.global_model_weights.trainable
    assert np.linalg.norm(np.append(*weights) - START) > 0.01


def test_with_normalized_updates_a_round_is_the_mean_of_directions():
    data = [client.batches(2, 1, np.float32) for client in CLIENTS]
    updates = updates_of(START)
    directions = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    weights, _ = problems.run(build(aggregators.NormalizedMeanFactory()), data)
    np.testing.assert_allclose(weights, START - directions.mean(axis=0), atol=1e-5)


def test_with_least_norm_no_update_points_away():
    data = [client.batches(2, 1, np.float32) for client in CLIENTS]
    weights, _ = problems.run(build(aggregators.MinNormFactory()), data)
    step = START - weights
    assert np.min(updates_of(START) @ step) >= np.dot(step, step) * (1 - 1e-4)
