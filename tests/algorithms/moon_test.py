"""MOON: NumPy's rounds, FedAvg without contrast and for newcomers."""

import numpy as np

from tests.testing import block_problems, remembering_identities, remembering_rounds
from tests.testing.remembering_cohorts import vector
from tests.testing.remembering_identities import after, assert_differ, assert_same_bits
from tests.testing.remembering_processes import (
    NUM_CLIENTS,
    cohort,
    process,
    some_rounds,
)
from tests.testing.remembering_rounds import block_rounds


def cosines(left, right):
    """Along the last axis; analytic, so without absolute values."""
    squares = np.sum(left**2, axis=-1) * np.sum(right**2, axis=-1)
    return np.sum(left * right, axis=-1) / np.sqrt(squares)


def test_moons_rounds_are_numpys():
    temperature, strength = 0.5, 2.0

    def objective(previous, server, x, labels):
        near, far = (block_problems.levels(at, x)[1] for at in (server, previous))

        def value(weights):
            _, features, logits = block_problems.levels(weights, x)
            towards = np.exp(cosines(features, near) / temperature)
            away = np.exp(cosines(features, far) / temperature)
            contrast = -np.log(towards / (towards + away))
            loss = block_problems.cross_entropy(logits, labels)
            return loss + strength * np.mean(contrast)

        return value

    training, last, _ = block_rounds(process("moon"), objective)
    for k in range(NUM_CLIENTS):
        row = training.memory.row(k)
        assert row["seen"] == (k in last)
        remembering_rounds.assert_close(
            vector(row["weights"]), last.get(k, np.zeros(51))
        )


def test_moon_of_strength_zero_is_fedavg_to_the_bit():
    data = some_rounds("blocks")
    free = process("moon", contrastive_strength=0.0)
    assert_same_bits(free, process("fedavg", "blocks"), *data)


def test_moon_is_fedavg_as_long_as_everybody_comes_for_the_first_time():
    first, second = cohort((0, 1), "blocks"), cohort((2, 3, 4), "blocks")
    fedavg = process("fedavg", "blocks")
    remembering_identities.assert_close(
        after(process("moon"), first, second), after(fedavg, first, second)
    )
    again = [first, second, first]
    assert_differ(after(process("moon"), *again), after(fedavg, *again))


def test_moons_client_alone_sets_the_server_model():
    # Other algorithms' are in the tests against NumPy.
    alone = cohort([0], "blocks")
    remembering_identities.assert_close(
        after(process("moon"), alone), after(process("fedavg", "blocks"), alone)
    )
