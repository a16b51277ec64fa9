"""Optimizers made of settings: decays, momentum, and what does not go together."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import problems
from tests.testing.fair_rounds import (
    BATCH,
    CLIENTS,
    EPOCHS,
    RATE,
    SIZES,
    assert_close,
    cohort,
    delta_of,
)
from tests.testing.problems import f32
from tff_algos.experiments.settings import ClientOptimizer, ServerOptimizer
from tff_algos.hyperparameters import HyperparameterError

SGD = tff.learning.optimizers.build_sgdm
START = problems.initial_vector()


def test_the_server_rate_decays_by_the_period():
    server = ServerOptimizer(
        server_learning_rate=0.8,
        server_learning_rate_decay=0.5,
        server_learning_rate_decay_period=2,
    )
    process = tff_algos.build_fed_avg(
        problems.linear_model(), SGD(RATE), server.build()
    )
    found, _ = problems.run(process, *[cohort()] * 5)
    expected = START
    for rate in (0.8, 0.8, 0.4, 0.4, 0.2):
        deltas = [delta_of(client, expected) for client in CLIENTS]
        expected = expected - f32(rate) * problems.mean(deltas, SIZES)
    assert_close(found, expected)


def test_the_rate_of_a_server_with_momentum_decays_by_the_period():
    server = ServerOptimizer(
        server_learning_rate=0.8,
        server_momentum=0.5,
        server_learning_rate_decay=0.25,
        server_learning_rate_decay_period=2,
    )
    process = tff_algos.build_fed_avg(
        problems.linear_model(np.float32),
        SGD(RATE),
        server.build(),
    )
    found, _ = problems.run(process, *[cohort(dtype=np.float32)] * 3)
    expected, velocity = START, 0.0
    for rate in (0.8, 0.8, 0.2):
        deltas = [delta_of(client, expected) for client in CLIENTS]
        velocity = 0.5 * velocity + problems.mean(deltas, SIZES)
        expected = expected - rate * velocity
    assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_the_momentum_of_clients_starts_afresh_in_every_round():
    clients = ClientOptimizer(client_learning_rate=RATE, client_momentum=0.6)
    process = tff_algos.build_fed_avg(
        problems.linear_model(np.float32), clients.build()
    )
    found, _ = problems.run(process, *[cohort(dtype=np.float32)] * 2)
    expected = START
    for _ in range(2):
        trained = [_heavy_ball(client, expected, 0.6) for client in CLIENTS]
        expected = problems.mean(trained, SIZES)
    assert_close(found, expected, rtol=1e-5, atol=1e-6)


def _heavy_ball(client, start, momentum):
    y, velocity = start, 0.0
    for first in list(range(0, len(client.y), BATCH)) * EPOCHS:
        gradient = client.gradient(y, slice(first, first + BATCH))
        velocity = momentum * velocity + gradient
        y = y - RATE * velocity
    return y


def test_momentum_of_an_optimizer_that_has_none_is_refused():
    with pytest.raises(HyperparameterError, match="client_momentum=0.9.*0, adam has"):
        ClientOptimizer(client_optimizer="adam", client_momentum=0.9)
