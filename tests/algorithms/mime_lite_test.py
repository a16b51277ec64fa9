"""MimeLite: NumPy's rounds, the paper's trace, FedAvg and heavy ball at its limits."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import linear_processes, local_steps, numpy_rounds, problems
from tests.testing.local_steps import SIZES, data_of, stage_of
from tests.testing.numpy_rounds import RATE, mean_delta
from tests.testing.scalar_problem import float32_client, float32_model

SGD = tff.learning.optimizers.build_sgdm
START = problems.initial_vector()


def test_mimelite_follows_the_papers_trace_on_two_parabolas():
    # The paper's damped form with beta = 0.9, eta = 0.1 on F_1 = (w - 1)^2 / 2,
    # F_2 = (w - 3)^2 / 2, J = 2 is TFF's form with eta = 0.1 * (1 - 0.9).
    model = float32_model(0.0)
    process = tff_algos.build_mime_lite(model, SGD(0.01, momentum=0.9))
    data = [float32_client(1.0, target, 2) for target in (1.0, 3.0)]
    first, _ = problems.run(process, data)
    second, _ = problems.run(process, data, data)
    assert first[0] == pytest.approx(0.0398, rel=1e-5)
    assert second[0] == pytest.approx(0.11462798, rel=1e-5)


def test_mimelite_is_numpys_local_training_with_frozen_momentum():
    process = tff_algos.build_mime_lite(
        problems.linear_model(np.float32), SGD(RATE, momentum=0.9)
    )
    data = numpy_rounds.cohort(np.float32)
    weights, _ = problems.run(process, data, data, data)
    expected, momentum = START, np.zeros_like(START)
    for _ in range(3):
        frozen = 0.9 * momentum
        delta = mean_delta(expected, correction=lambda w, m=frozen: lambda y: m)
        full = problems.mean(
            [c.gradient(expected) for c in numpy_rounds.CLIENTS], [6, 3, 7]
        )
        momentum = frozen + full
        expected = expected - delta
    numpy_rounds.assert_close(weights, expected)


def test_mimelite_with_momentum_zero_is_fedavg():
    data = linear_processes.cohort(epochs=2)
    mime, _ = problems.run(
        tff_algos.build_mime_lite(linear_processes.model(), SGD(0.1)), data, data
    )
    fedavg, _ = problems.run(
        tff_algos.build_fed_avg(linear_processes.model(), SGD(0.1)), data, data
    )
    linear_processes.assert_close(mime, fedavg)


def test_mimelite_is_fedavg_in_the_first_round_only():
    data = linear_processes.cohort(epochs=2, dtype=np.float32)
    base = SGD(0.1, momentum=0.9)
    mime = tff_algos.build_mime_lite(linear_processes.model(np.float32), base)
    fedavg = tff_algos.build_fed_avg(linear_processes.model(np.float32), SGD(0.1))
    linear_processes.assert_close(
        problems.run(mime, data)[0], problems.run(fedavg, data)[0]
    )
    after_two, _ = problems.run(mime, data, data)
    fedavg_after_two, _ = problems.run(fedavg, data, data)
    assert np.max(np.abs(after_two - fedavg_after_two)) > 1e-3


def test_mimelite_with_one_full_batch_step_is_heavy_ball_on_pooled_data():
    data = linear_processes.cohort(batch_size=None, dtype=np.float32)
    process = tff_algos.build_mime_lite(
        linear_processes.model(np.float32), SGD(0.1, momentum=0.9)
    )
    weights, _ = problems.run(process, data, data, data)
    pooled = problems.Client(
        np.concatenate([c.x for c in linear_processes.CLIENTS]),
        np.concatenate([c.y for c in linear_processes.CLIENTS]),
    )
    expected, momentum = problems.initial_vector(np.float32), 0.0
    for _ in range(3):
        momentum = 0.9 * momentum + pooled.gradient(expected)
        expected = expected - 0.1 * momentum
    linear_processes.assert_close(weights, expected)


@pytest.mark.parametrize("damped", [False, True])
def test_with_one_full_batch_step_both_forms_of_mimelite_are_heavy_ball(damped):
    # TFF's: m <- beta m + g. The paper's: m <- beta m + (1 - beta) g.
    stage = stage_of(
        "mimelite",
        base_momentum=0.9,
        damped_momentum=damped,
        client_steps_per_round=None,
        client_epochs_per_round=1,
        client_batch_size=max(SIZES),
    )
    data, _ = data_of(stage)
    weights, _ = problems.run(stage.process, data, data, data)
    pooled = problems.Client(
        *(np.concatenate([getattr(c, n) for c in local_steps.CLIENTS]) for n in "xy")
    )
    expected, momentum = START, 0.0
    for _ in range(3):
        gradient = pooled.gradient(expected)
        momentum = 0.9 * momentum + (1 - 0.9 if damped else 1.0) * gradient
        expected = expected - RATE * momentum
    linear_processes.assert_close(weights, expected)


def test_mimelites_full_gradient_is_over_the_clients_examples():
    stage = stage_of("mimelite", base_momentum=0.5)
    data, _ = data_of(stage)
    output = stage.process.next(stage.process.initialize(), data)
    gradients = [client.gradient(START) for client in local_steps.CLIENTS]
    mime_state, _ = output.state.client_work
    momentum = np.concatenate(
        [np.ravel(t) for t in tf.nest.flatten(mime_state.optimizer["accumulator"])]
    )
    np.testing.assert_allclose(
        momentum, np.average(gradients, axis=0, weights=SIZES), rtol=1e-9
    )
