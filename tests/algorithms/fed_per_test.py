"""FedPer: NumPy's rounds, FedAvg without a head, local training with nothing else."""

import numpy as np
import pytest

from tests.testing import block_problems, personal_rounds, remembering_rounds
from tests.testing.remembering_cohorts import run
from tests.testing.remembering_identities import assert_same_bits
from tests.testing.remembering_processes import NUM_CLIENTS, process, some_rounds
from tff_algos.hyperparameters import HyperparameterError

START = block_problems.initial_vector()
# The classifier: a kernel [3, 3] and a bias [3].
HEAD = np.arange(len(START)) >= len(START) - 12


def test_rounds_are_numpys():
    personal_rounds.assert_partly_personal(
        process("fedper"), HEAD, personal_rounds.trained
    )


def test_without_personal_blocks_it_is_fedavg_to_the_bit():
    assert_same_bits(
        process("fedper", personal_blocks=0),
        process("fedavg", "blocks"),
        *some_rounds("blocks"),
    )


def test_with_personal_blocks_alone_clients_train_alone():
    data = some_rounds("blocks")
    found = run(process("fedper", personal_blocks=3), NUM_CLIENTS, *data)
    alone = run(process("local", "blocks"), NUM_CLIENTS, *data)
    np.testing.assert_array_equal(found.weights, START)
    for k in (0, 1, 6):
        np.testing.assert_array_equal(found.row(k), alone.row(k))
    remembering_rounds.assert_close(alone.weights, START)


@pytest.mark.parametrize(
    ("personal_blocks", "shares"), [(0, True), (2, True), (3, False)]
)
def test_clients_share_weights_unless_all_blocks_are_personal(personal_blocks, shares):
    fed_per = process("fedper", personal_blocks=personal_blocks)
    assert fed_per.shares_weights == shares


def test_more_blocks_than_the_model_has_are_refused():
    with pytest.raises(HyperparameterError, match="personal_blocks=4.*at most 3"):
        process("fedper", personal_blocks=4)


def test_a_model_without_blocks_is_refused():
    with pytest.raises(TypeError, match="BlockModel"):
        process("fedper", "linear")
