"""APFL: NumPy's rounds, FedAvg at alpha 0, local training at alpha 1."""

import numpy as np
import pytest

from tests.testing import problems, remembering_rounds
from tests.testing.personal_rounds import batch_rows, own_weights, predicting
from tests.testing.remembering_cohorts import run
from tests.testing.remembering_identities import assert_same_bits, trained
from tests.testing.remembering_processes import (
    CLIENTS,
    NUM_CLIENTS,
    RATE,
    cohort,
    process,
    some_rounds,
)
from tests.testing.remembering_rounds import COHORTS, SIZES, rounds
from tff_algos.hyperparameters import HyperparameterError

START, MIXING = problems.initial_vector(), 0.3


def _steps(client, w, v, mixing, adaptive):
    """Returns y, v and alpha after the local steps of a client."""
    y = w
    for number, rows in enumerate(batch_rows(client)):
        at_mixed = CLIENTS[client].gradient(mixing * v + (1 - mixing) * y, rows)
        moved = v - RATE * mixing * at_mixed
        if adaptive and number == 0:
            mixing = np.clip(mixing - RATE * (v - y) @ at_mixed, 0, 1)
        y, v = y - RATE * CLIENTS[client].gradient(y, rows), moved
    return y, v, mixing


@pytest.mark.parametrize("adaptive", [False, True])
def test_rounds_are_numpys(adaptive):
    w, own = START, {}
    mixing = process("apfl", adaptive_mixing=adaptive)
    for number, (training, _) in enumerate(rounds(mixing)):
        taking_part, models = COHORTS[number], []
        for k in taking_part:
            y, *own[k] = _steps(k, w, *own.get(k, (w, MIXING)), adaptive)
            models.append(y)
        w = problems.mean(models, [SIZES[k] for k in taking_part])
        remembering_rounds.assert_close(training.weights, w)
        for k in taking_part:
            v, alpha = own[k]
            remembering_rounds.assert_close(own_weights(training, k), v)
            mixed = alpha * v + (1 - alpha) * w
            remembering_rounds.assert_close(predicting(training, k), mixed)
            if adaptive:
                row = training.memory.row(k)
                remembering_rounds.assert_close(row["mixing"], alpha)
    if adaptive:
        assert len({round(alpha, 6) for _, alpha in own.values()}) > 3
    remembering_rounds.assert_close(predicting(training, 4), w)


@pytest.mark.parametrize("mixing", [0.0, 0.3])
def test_the_servers_model_is_fedavgs_to_the_bit(mixing):
    assert_same_bits(process("apfl", mixing=mixing), process("fedavg"), *some_rounds())


def test_at_alpha_0_clients_predict_with_the_servers_model():
    training = run(process("apfl", mixing=0.0), NUM_CLIENTS, *some_rounds())
    np.testing.assert_array_equal(predicting(training, 1), training.weights)


def test_at_alpha_1_a_client_trains_alone():
    everybody = cohort(range(NUM_CLIENTS))
    training = run(process("apfl", mixing=1.0), NUM_CLIENTS, everybody, everybody)
    for k in range(NUM_CLIENTS):
        alone = trained(k, trained(k, START))
        remembering_rounds.assert_close(predicting(training, k), alone)


def test_a_mixture_outside_of_0_to_1_is_refused():
    with pytest.raises(HyperparameterError, match="mixing=1.5"):
        process("apfl", mixing=1.5)
