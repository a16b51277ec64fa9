"""LG-FedAvg: NumPy's rounds, FedAvg without personal blocks."""

import numpy as np
import pytest

from tests.testing import block_problems, personal_rounds
from tests.testing.remembering_identities import assert_same_bits
from tests.testing.remembering_processes import process, some_rounds
from tff_algos.hyperparameters import HyperparameterError

# The first block: a kernel [5, 4] and a bias [4].
REPRESENTATION = np.arange(len(block_problems.initial_vector())) < 24


def test_rounds_are_numpys():
    personal_rounds.assert_partly_personal(
        process("lg_fedavg"), REPRESENTATION, personal_rounds.trained
    )


def test_without_personal_blocks_it_is_fedavg_to_the_bit():
    assert_same_bits(
        process("lg_fedavg", personal_blocks=0),
        process("fedavg", "blocks"),
        *some_rounds("blocks"),
    )


def test_more_blocks_than_the_model_has_are_refused():
    with pytest.raises(HyperparameterError, match="personal_blocks=9.*at most 3"):
        process("lg_fedavg", personal_blocks=9)
