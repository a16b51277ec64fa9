"""Reptile: uniform FedAvg whose server has an optimizer."""

import numpy as np
import tensorflow_federated as tff

import tff_algos
from tests.testing import linear_processes, numpy_rounds, problems
from tests.testing.linear_processes import EQUAL_CLIENTS, model
from tests.testing.numpy_rounds import RATE, adam, mean_delta

SGD = tff.learning.optimizers.build_sgdm
START = problems.initial_vector()
UNIFORM = tff.learning.ClientWeighting.UNIFORM


def test_reptile_with_adam_is_numpys_adam_over_mean_updates():
    process = tff_algos.build_reptile(problems.linear_model(np.float32), SGD(RATE))
    data = numpy_rounds.cohort(np.float32)
    weights, _ = problems.run(process, data, data)
    numpy_rounds.assert_close(
        weights, adam(START, [lambda w: mean_delta(w, uniform=True)] * 2)
    )


def test_reptile_is_uniform_fedavg_where_epochs_are_steps_to_the_bit():
    # 6 examples, batches of 2: 2 epochs are K = 6 steps on every client.
    epochs = linear_processes.cohort(EQUAL_CLIENTS, batch_size=2, epochs=2)
    steps = [c.batches(2, 5).take(6) for c in EQUAL_CLIENTS]
    reptile = tff_algos.build_reptile(model(), SGD(0.1), SGD(1.0))
    fedavg = tff_algos.build_fed_avg(model(), SGD(0.1), client_weighting=UNIFORM)
    np.testing.assert_array_equal(
        problems.run(reptile, steps)[0], problems.run(fedavg, epochs)[0]
    )


def test_reptile_with_one_full_batch_is_uniform_fedsgd():
    data = linear_processes.cohort(batch_size=None)
    reptile = tff_algos.build_reptile(model(), SGD(0.1), SGD(0.5))
    fedsgd = tff_algos.build_fed_sgd(model(), SGD(0.05), client_weighting=UNIFORM)
    linear_processes.assert_close(
        problems.run(reptile, data, data)[0], problems.run(fedsgd, data, data)[0]
    )
