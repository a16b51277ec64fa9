"""A server optimizer's step: it is taken, or rejected and counted."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_algos import finalizers

WEIGHTS = tff.learning.models.ModelWeights((np.array([1.0, 2.0]),), ())


def step(update):
    weights_type = tff.to_type(
        tff.learning.models.ModelWeights((tff.TensorType(np.float64, [2]),), ())
    )
    finalizer = finalizers.build_apply_optimizer_finalizer(
        tff.learning.optimizers.build_sgdm(0.5), weights_type
    )
    update = (np.array(update),)
    return finalizer.next(finalizer.initialize(), WEIGHTS, update)


def test_the_aggregate_is_taken_for_a_gradient():
    output = step([6.0, 8.0])
    np.testing.assert_array_equal(output.result.trainable[0], [-2.0, -2.0])
    assert output.measurements["update_norm"] == 10.0
    assert output.measurements["num_rejected_rounds"] == 0


@pytest.mark.parametrize("update", [[np.nan, 0.0], [np.inf, 0.0], [1e200, 0.0]])
def test_what_has_no_finite_norm_is_rejected(update):
    output = step(update)
    np.testing.assert_array_equal(output.result.trainable[0], [1.0, 2.0])
    assert output.measurements["num_rejected_rounds"] == 1
