"""FedSGD: a step along the mean gradient, whatever the batches."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import linear_processes, numpy_rounds, problems
from tests.testing.linear_processes import assert_close, model
from tests.testing.numpy_rounds import CLIENTS, RATE, assert_exact
from tests.testing.problems import f32
from tff_algos.hyperparameters import HyperparameterError

SGD = tff.learning.optimizers.build_sgdm
START = problems.initial_vector()


def test_fedsgd_is_a_step_along_the_mean_gradient():
    process = tff_algos.build_fed_sgd(problems.linear_model(), SGD(RATE))
    weights, output = problems.run(process, numpy_rounds.cohort(epochs=1))
    gradients = [client.gradient(START) for client in CLIENTS]
    mean = problems.mean(gradients, [6, 3, 7])
    assert_exact(weights, START - f32(RATE) * mean)
    norm = output.metrics["finalizer"]["update_norm"]
    assert norm == pytest.approx(np.linalg.norm(mean), rel=1e-6)


def test_fedsgd_is_fedavg_with_one_full_batch_step():
    data = linear_processes.cohort(batch_size=None)
    fedavg, _ = problems.run(tff_algos.build_fed_avg(model(), SGD(0.1)), data, data)
    fedsgd, _ = problems.run(tff_algos.build_fed_sgd(model(), SGD(0.1)), data, data)
    assert_close(fedsgd, fedavg)


def test_fedsgd_does_not_depend_on_the_batching():
    process = tff_algos.build_fed_sgd(model(), SGD(0.1))
    whole, _ = problems.run(process, linear_processes.cohort(batch_size=None))
    small, _ = problems.run(process, linear_processes.cohort(batch_size=2))
    assert_close(small, whole)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("client_weighting", "uniform"), ("server_optimizer_fn", 0.1)],
)
def test_bad_arguments_are_named(argument, value):
    with pytest.raises(HyperparameterError, match=f"^{argument}="):
        tff_algos.build_fed_sgd(model(), **{argument: value})
