"""FedRep: NumPy's rounds, bodies that never move, passes that do not go together."""

import numpy as np
import pytest

from tests.testing import block_problems, personal_rounds
from tests.testing.remembering_cohorts import run
from tests.testing.remembering_processes import NUM_CLIENTS, process, some_rounds
from tff_algos.hyperparameters import HyperparameterError

START = block_problems.initial_vector()
HEAD = np.arange(len(START)) >= len(START) - 12


@pytest.mark.parametrize(("head_passes", "body_passes"), [(1, 1), (2, 1), (0, 2)])
def test_rounds_are_numpys(head_passes, body_passes):
    def train(number, weights):
        for _ in range(head_passes):
            weights = personal_rounds.trained(number, weights, HEAD)
        for _ in range(body_passes):
            weights = personal_rounds.trained(number, weights, ~HEAD)
        return weights

    personal_rounds.assert_partly_personal(
        process("fedrep", head_passes=head_passes, body_passes=body_passes), HEAD, train
    )


def test_without_passes_for_the_body_it_never_moves():
    heads_alone = process("fedrep", body_passes=0)
    training = run(heads_alone, NUM_CLIENTS, *some_rounds("blocks"))
    np.testing.assert_array_equal(training.weights, START)
    moved = personal_rounds.predicting(training, 1) != START
    np.testing.assert_array_equal(moved, HEAD)


def test_without_any_pass_it_is_refused():
    with pytest.raises(HyperparameterError, match="body_passes=0.*head_passes=0"):
        process("fedrep", head_passes=0, body_passes=0)
