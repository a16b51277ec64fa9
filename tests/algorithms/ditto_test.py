"""Ditto: NumPy's rounds, FedAvg's server, local training without a penalty."""

import numpy as np
import pytest

from tests.testing import problems, remembering_rounds
from tests.testing.personal_rounds import own_weights, predicting
from tests.testing.remembering_cohorts import run
from tests.testing.remembering_identities import assert_same_bits, trained
from tests.testing.remembering_processes import (
    NUM_CLIENTS,
    cohort,
    process,
    some_rounds,
)
from tests.testing.remembering_rounds import COHORTS, SIZES, rounds
from tff_algos.hyperparameters import HyperparameterError

START, STRENGTH = problems.initial_vector(), 0.5


def test_rounds_are_numpys():
    w, own = START, {}
    for number, (training, _) in enumerate(rounds(process("ditto"))):
        taking_part, models = COHORTS[number], []
        for k in taking_part:
            models.append(remembering_rounds.trained(k, w))
            own[k] = remembering_rounds.trained(
                k, own.get(k, w), correction=lambda v, w=w: STRENGTH * (v - w)
            )
        w = problems.mean(models, [SIZES[k] for k in taking_part])
        remembering_rounds.assert_close(training.weights, w)
        for k in taking_part:
            remembering_rounds.assert_close(own_weights(training, k), own[k])
            remembering_rounds.assert_close(predicting(training, k), own[k])
    remembering_rounds.assert_close(predicting(training, 4), w)


def test_the_servers_model_is_fedavgs_to_the_bit():
    assert_same_bits(process("ditto"), process("fedavg"), *some_rounds())


def test_without_a_penalty_a_client_trains_alone():
    everybody = cohort(range(NUM_CLIENTS))
    training = run(
        process("ditto", personal_strength=0.0), NUM_CLIENTS, everybody, everybody
    )
    for k in range(NUM_CLIENTS):
        alone = trained(k, trained(k, START))
        remembering_rounds.assert_close(own_weights(training, k), alone)
    assert np.max(np.abs(training.weights - own_weights(training, 0))) > 1e-2


def test_a_negative_penalty_is_refused():
    with pytest.raises(HyperparameterError, match="personal_strength=-1.0"):
        process("ditto", personal_strength=-1.0)
