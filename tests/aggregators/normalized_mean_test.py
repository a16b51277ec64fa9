"""The mean of directions: whatever the lengths of updates, without those of none."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators import NormalizedMeanFactory
from tff_algos.aggregators.normalized_mean import squared_norm

PAIR = tff.to_type(((np.float32, [2]), np.float32))


def combine(updates, weights):
    process = NormalizedMeanFactory().create(PAIR, tff.TensorType(np.float32))
    updates = [(np.array(x, np.float32), np.float32(y)) for x, y in updates]
    output = process.next(process.initialize(), updates, weights)
    return np.append(*output.result), output.measurements


def test_the_squared_norm_is_over_all_tensors():
    assert squared_norm((tf.constant([3.0, 4.0]), tf.constant(12.0))).numpy() == 169.0


def test_directions_are_averaged_by_weight():
    found, _ = combine([([3.0, 0.0], 4.0), ([0.0, -2.0], 0.0)], [1.0, 3.0])
    np.testing.assert_allclose(found, [0.15, -0.75, 0.2], rtol=1e-6)


def test_updates_of_zero_and_those_that_are_not_finite_weigh_nothing():
    updates = [([3.0, 0.0], 4.0), ([0.0, 0.0], 0.0), ([np.nan, 1.0], 1.0)]
    found, measurements = combine(updates, [1.0, 1.0, 1.0])
    np.testing.assert_allclose(found, [0.6, 0.0, 0.8], rtol=1e-6)
    assert measurements["num_zero_updates"] == 1
    assert measurements["num_non_finite_clients"] == 1


def test_an_update_too_long_for_its_norm_weighs_nothing():
    value = tff.TensorType(np.float64, [2])
    process = NormalizedMeanFactory().create(value, tff.TensorType(np.float32))
    updates = [np.array([3.0, 4.0]), np.array([1e200, 0.0])]
    output = process.next(process.initialize(), updates, [1.0, 1.0])
    np.testing.assert_allclose(output.result, [0.6, 0.8], rtol=1e-12)
    assert output.measurements["num_non_finite_clients"] == 1
    assert output.measurements["num_zero_updates"] == 0


def test_an_unweighted_factory_is_refused():
    with pytest.raises(TypeError, match="as_weighted_aggregator"):
        NormalizedMeanFactory(tff.aggregators.UnweightedMeanFactory())
