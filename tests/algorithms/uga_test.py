"""UGA: NumPy's gradient through local training, FedSGD and MAML at its limits."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import linear_processes, numpy_rounds, problems
from tests.testing.linear_processes import EQUAL_CLIENTS, assert_close, maml, model, uga
from tests.testing.numpy_rounds import (
    BATCH,
    CLIENTS,
    RATE,
    assert_exact,
    through_training,
)
from tests.testing.problems import f32

SGD = tff.learning.optimizers.build_sgdm
START = problems.initial_vector()
UNIFORM = tff.learning.ClientWeighting.UNIFORM


def test_uga_is_numpys_gradient_through_local_training():
    process = tff_algos.build_unbiased_gradient_aggregation(
        problems.linear_model(),
        SGD(0.5),
        client_learning_rate=RATE,
        client_epochs_per_round=3,
        client_learning_rate_decay=0.5,
    )
    data = numpy_rounds.cohort(epochs=1)
    weights, output = problems.run(process, data, data)
    expected = START
    for round_num in range(2):
        rate = f32(RATE) * 0.5**round_num
        gradients = [
            through_training(c, expected, rate, 2 * -(-len(c.y) // BATCH), slice(None))
            for c in CLIENTS
        ]
        expected = expected - 0.5 * problems.mean(gradients, [6, 3, 7])
    assert_exact(weights, expected)
    largest = max(np.linalg.norm(gradient) for gradient in gradients)
    found = output.metrics["client_work"]["max_gradient_norm"]
    assert found == pytest.approx(largest, rel=1e-6)


def test_uga_with_one_epoch_is_fedsgd():
    data = linear_processes.cohort()
    fedsgd = tff_algos.build_fed_sgd(model(), SGD(0.5))
    assert_close(
        problems.run(uga(epochs=1, server=0.5), data, data)[0],
        problems.run(fedsgd, data, data)[0],
        rtol=1e-10,
        atol=1e-12,
    )


def test_uga_with_idle_clients_tends_to_fedsgd():
    data = linear_processes.cohort()
    fedsgd, _ = problems.run(tff_algos.build_fed_sgd(model(), SGD(1.0)), data)
    idle, _ = problems.run(uga(rate=1e-9, epochs=3), data)
    assert_close(idle, fedsgd, rtol=1e-7, atol=1e-7)


def test_uga_with_one_step_is_per_fedavg_with_the_same_data_in_both_roles():
    # E = 2 epochs of one batch: one step, then the gradient of the same examples.
    data = linear_processes.cohort(EQUAL_CLIENTS, batch_size=None)
    weights, _ = problems.run(uga(epochs=2), data, data)
    expected = START
    for _ in range(2):
        gradients = []
        for client in EQUAL_CLIENTS:
            adapted = expected - f32(0.1) * client.gradient(expected)
            jacobian = np.eye(6) - f32(0.1) * numpy_rounds.hessian(client)
            gradients.append(jacobian @ client.gradient(adapted))
        expected = expected - np.mean(gradients, axis=0)
    assert_exact(weights, expected)
    assert_exact(problems.run(maml(1), data, data)[0], expected)


def test_uga_is_maml_with_as_many_steps_and_all_examples_for_query():
    # 6 examples, batches of 2: an epoch is 3 steps on every client.
    data = linear_processes.cohort(EQUAL_CLIENTS)
    assert_close(
        problems.run(maml(6), data, data)[0],
        problems.run(uga(epochs=3, client_weighting=UNIFORM), data, data)[0],
        rtol=1e-10,
        atol=1e-12,
    )
