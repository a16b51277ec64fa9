"""FedDyn: NumPy's rounds, adaptive strengths, FedAvg and FedProx at its limits."""

import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.testing import (
    local_steps,
    problems,
    remembering_identities,
    remembering_rounds,
)
from tests.testing.local_steps import RATE, gradient, rows_after_a_round, stage_of
from tests.testing.problems import f32
from tests.testing.remembering_cohorts import vector
from tests.testing.remembering_identities import after, assert_same_bits
from tests.testing.remembering_processes import (
    BATCH,
    EPOCHS,
    NUM_CLIENTS,
    cohort,
    process,
    some_rounds,
)
from tests.testing.remembering_rounds import COHORTS, rounds
from tff_algos.hyperparameters import HyperparameterError

START = problems.initial_vector()
UNIFORM = tff.learning.ClientWeighting.UNIFORM


@pytest.mark.parametrize("adaptive", [False, True])
def test_feddyns_rounds_are_numpys(adaptive):
    w, mean, own, alpha = START, np.zeros(6), np.zeros([NUM_CLIENTS, 6]), 0.5
    strengths = (
        np.mean(remembering_rounds.SIZES) / remembering_rounds.SIZES
        if adaptive
        else np.ones(NUM_CLIENTS)
    )
    changes = (
        {"mean_examples": EPOCHS * np.mean(remembering_rounds.SIZES)}
        if adaptive
        else {}
    )
    for number, (training, output) in enumerate(rounds(process("feddyn", **changes))):

        def correction(y, k, w=w):
            return strengths[k] * (alpha * (y - w) - own[k])

        models = {
            k: remembering_rounds.trained(
                k, w, correction=functools.partial(correction, k=k)
            )
            for k in COHORTS[number]
        }
        for k, y in models.items():
            own[k] = own[k] - alpha * (y - w)
        mean = mean + alpha / NUM_CLIENTS * sum(w - y for y in models.values())
        before, w = w, np.mean(list(models.values()), axis=0) - mean / alpha
        remembering_rounds.assert_close(training.weights, w)
        remembering_rounds.assert_close(vector(training.state.finalizer), mean)
        remembering_rounds.assert_close(
            [training.row(k) for k in range(NUM_CLIENTS)], own
        )
        measured = output.metrics["finalizer"]["update_norm"]
        assert measured == pytest.approx(np.linalg.norm(w - before), rel=1e-6)


def test_feddyn_of_strength_zero_is_uniform_fedavg_to_the_bit():
    data = some_rounds()
    still = process("feddyn", dynamic_regularization=0.0)
    assert_same_bits(still, process("fedavg", client_weighting=UNIFORM), *data)


def test_feddyn_adapts_nothing_to_clients_of_one_size():
    clients = [problems.clients([5] * NUM_CLIENTS)[k] for k in range(NUM_CLIENTS)]
    data = [
        {k: clients[k].batches(BATCH, EPOCHS) for k in numbers}
        for numbers in ((0, 1, 2), (3, 1))
    ]
    adaptive = process("feddyn", mean_examples=5.0 * EPOCHS)
    assert_same_bits(adaptive, process("feddyn"), *data)


@pytest.mark.parametrize("size", [2, NUM_CLIENTS])
def test_feddyns_first_round_is_fedprox_with_a_larger_server_rate(size):
    start = problems.initial_vector()
    prox = [
        remembering_identities.trained(k, start, correction=lambda y: 0.5 * (y - start))
        for k in range(size)
    ]
    expected = start - (1 + size / NUM_CLIENTS) * (start - np.mean(prox, axis=0))
    remembering_identities.assert_close(
        after(process("feddyn"), cohort(range(size))), expected
    )


def test_feddyns_adaptive_strength_goes_by_the_examples_that_a_client_has():
    """After a round from zeros, a row is alpha * delta of alpha_k = alpha * n / n_k."""
    alpha, mean = 0.3, np.mean(local_steps.SIZES)
    stage = stage_of(
        "feddyn", dynamic_regularization=alpha, adaptive_regularization=True
    )
    rows, read = rows_after_a_round(stage)
    for number, size in enumerate(local_steps.SIZES):
        w = START
        for batch in read[number]["examples"]:
            own = alpha * mean / size
            w = w - f32(RATE) * (gradient(w, batch) + own * (w - START))
        np.testing.assert_allclose(
            rows[number], alpha * (START - w), rtol=1e-6, atol=1e-8
        )


@pytest.mark.parametrize("value", ["10", True, 0, np.inf])
def test_feddyn_names_a_mean_that_is_no_number_above_0(value):
    with pytest.raises(HyperparameterError, match="^mean_examples=.* a number > 0"):
        process("feddyn", mean_examples=value)
