"""FedDyn's server: the mean linear term and the step, by hand."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_algos.finalizers import dynamic_regularization


def rounds(alpha, *updates):
    """The state, the weight and the measurements after updates of 2 of 8 clients."""
    weights_type = tff.to_type(
        tff.learning.models.ModelWeights((tff.TensorType(np.float64),), ())
    )
    finalizer = dynamic_regularization.build_dynamic_regularization_finalizer(
        weights_type, dynamic_regularization=alpha, num_clients=8
    )
    state = finalizer.initialize()
    weights = tff.learning.models.ModelWeights((np.float64(1.0),), ())
    for delta in updates:
        update = {"value": (np.float64(delta),), "total_weight": np.float32(2)}
        output = finalizer.next(state, weights, update)
        state, weights = output.state, output.result
    return state[0], weights.trainable[0], output.measurements


def test_the_linear_term_adds_up_and_is_part_of_every_step():
    # h = 0.5 * 2/8 * 4 = 0.5, the step is 4 + 0.5/0.5 = 5; then h = 0.25 more by 2,
    # and the step is 2 + 0.75/0.5 = 3.5.
    linear, weight, measured = rounds(0.5, 4.0)
    assert (linear, weight, measured["update_norm"]) == (0.5, -4.0, 5.0)
    linear, weight, measured = rounds(0.5, 4.0, 2.0)
    assert (linear, weight, measured["update_norm"]) == (0.75, -7.5, 3.5)
    assert measured["num_rejected_rounds"] == 0


def test_with_strength_zero_it_is_a_plain_step():
    assert rounds(0.0, 4.0)[:2] == (0.0, -3.0)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_rejected_round_changes_nothing(broken):
    linear, weight, measured = rounds(0.5, 4.0, broken)
    assert (linear, weight) == (0.5, -4.0)
    assert measured["num_rejected_rounds"] == 1
