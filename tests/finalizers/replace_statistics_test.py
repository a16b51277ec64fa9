"""Statistics at the server: replaced by the clients' mean, unless a round is rejected."""

import numpy as np
import tensorflow_federated as tff

from tff_algos.finalizers import build_apply_optimizer_finalizer, replace_statistics

WEIGHTS = tff.learning.models.ModelWeights(
    (np.float32(1.0),), (np.float32(10.0), np.int32(3), np.float32(20.0))
)


def finalize(delta, second_statistic=21.0):
    weights_type = tff.to_type(
        tff.learning.models.ModelWeights(
            (tff.TensorType(np.float32),), (np.float32, np.int32, np.float32)
        )
    )
    inner = build_apply_optimizer_finalizer(
        tff.learning.optimizers.build_sgdm(1.0), weights_type
    )
    finalizer = replace_statistics.build_statistics_finalizer(
        inner, tff.to_type((np.float32, np.float32)), (True, False, True)
    )
    update = {
        "update": (np.float32(delta),),
        "statistics": (np.float32(11.0), np.float32(second_statistic)),
    }
    return finalizer.next(finalizer.initialize(), WEIGHTS, update)


def test_floating_point_statistics_are_replaced_in_their_order():
    output = finalize(0.25)
    assert output.result.trainable == (0.75,)
    assert tuple(output.result.non_trainable) == (11.0, 3, 21.0)


def test_with_a_rejected_round_statistics_stay():
    output = finalize(np.nan)
    assert output.result.trainable == (1.0,)
    assert tuple(output.result.non_trainable) == (10.0, 3, 20.0)
    assert output.measurements["num_rejected_rounds"] == 1


def test_statistics_of_nobody_change_nothing():
    """As where noise makes a finite update of a round without clients."""
    output = finalize(0.25, np.nan)
    assert output.result.trainable == (0.75,)
    assert tuple(output.result.non_trainable) == (10.0, 3, 20.0)
