"""Centralized training: one client, whose optimizer lasts."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import linear_processes, numpy_rounds, problems
from tests.testing.float32_processes import built, cohort
from tests.testing.linear_processes import model
from tests.testing.numpy_rounds import BATCH
from tff_algos.hyperparameters import HyperparameterError

START = problems.initial_vector()
SGD = tff.learning.optimizers.build_sgdm


def test_centralized_with_adam_is_numpys_adam_over_the_batches():
    adam = tff.learning.optimizers.build_adam(0.05)
    process = tff_algos.build_centralized(problems.linear_model(np.float32), adam)
    client = numpy_rounds.CLIENTS[2]
    data = [client.batches(BATCH, 1, np.float32)]
    weights, output = problems.run(process, data, data)
    rows = [slice(start, start + BATCH) for start in range(0, 7, BATCH)]
    gradients = [lambda w, r=r: client.gradient(w, r) for r in rows]
    numpy_rounds.assert_close(
        weights, numpy_rounds.adam(START, gradients * 2, rate=0.05)
    )
    assert output.metrics["client_work"]["num_empty_clients"] == 0


def test_centralized_on_one_client_is_a_round_of_fedavg():
    data = [linear_processes.CLIENTS[0].batches(2)]
    centralized = tff_algos.build_centralized(model(), SGD(0.1))
    linear_processes.assert_close(
        problems.run(centralized, data)[0],
        problems.run(tff_algos.build_fed_avg(model(), SGD(0.1)), data)[0],
        rtol=1e-7,
        atol=1e-8,
    )


def test_centralized_keeps_its_optimizer_from_round_to_round():
    adam = tff.learning.optimizers.build_adam(0.1)
    process = tff_algos.build_centralized(model(np.float32), adam)
    client = linear_processes.CLIENTS[0]
    one_by_one = [client.batches(2, dtype=np.float32).skip(i).take(1) for i in range(3)]
    split, _ = problems.run(process, *[[batch] for batch in one_by_one])
    whole, _ = problems.run(process, [client.batches(2, dtype=np.float32)])
    linear_processes.assert_close(split, whole)


def test_centralized_refuses_more_than_one_client():
    process = built("centralized")
    with pytest.raises(Exception, match="takes one client, the pooled examples"):
        process.next(process.initialize(), cohort())


def test_centralized_names_what_is_no_optimizer():
    with pytest.raises(
        HyperparameterError, match=r"^client_optimizer_fn=0\.1 .*build_sgdm"
    ):
        tff_algos.build_centralized(problems.linear_model(), 0.1)
