"""The weighted mean: TFF's, and of half precision one that does not overflow."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators import MeanFactory
from tff_algos.aggregators.mean_statistics import StatisticsFactory

WEIGHT = tff.TensorType(np.float32)
HALF = (np.float16, tf.bfloat16.as_numpy_dtype)


def _mean(values, weights, dtype):
    value_type = tff.to_type(collections.OrderedDict(b=(dtype, [2]), a=dtype))
    process = MeanFactory().create(value_type, WEIGHT)
    given = [
        collections.OrderedDict(b=np.full(2, value, dtype), a=dtype(value))
        for value in values
    ]
    result = process.next(process.initialize(), given, weights).result
    assert list(result) == ["b", "a"]
    assert {np.asarray(each).dtype for each in result.values()} == {np.dtype(dtype)}
    return [*map(float, result["b"]), float(result["a"])]


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_summed_in_float32(dtype):
    # In float16 the weighted sum is 40,000 and the total weight infinite.
    assert _mean([0.5, 0.5], [40_000.0, 40_000.0], dtype) == [0.5] * 3
    assert _mean([4.0, 2.0], [60_000.0, 20_000.0], dtype) == [3.5] * 3


@pytest.mark.parametrize("dtype", HALF)
def test_without_weight_the_mean_is_undefined(dtype):
    assert np.isnan(_mean([0.5], [0.0], dtype)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_other_values_have_tffs_own_process(dtype):
    value_type = tff.to_type([(dtype, [2]), dtype])
    ours = MeanFactory().create(value_type, WEIGHT)
    theirs = tff.aggregators.MeanFactory().create(value_type, WEIGHT)
    assert ours.next.type_signature == theirs.next.type_signature
    assert _mean([1.0, 4.0], [2.0, 1.0], dtype) == [2.0] * 3


def test_values_that_are_no_floats_are_refused_as_by_tff():
    for dtype in (np.int16, np.int32, np.bool_):
        with pytest.raises(TypeError, match="floating"):
            MeanFactory().create(tff.TensorType(dtype), WEIGHT)


def test_the_sum_may_be_another_one():
    clipped = tff.aggregators.clipping_factory(1.0, tff.aggregators.SumFactory())
    process = MeanFactory(clipped).create(tff.TensorType(np.float16), WEIGHT)
    values, weights = [np.float16(0.5), np.float16(4.0)], [1.0, 1.0]
    result = process.next(process.initialize(), values, weights).result
    assert result == 0.75 and np.asarray(result).dtype == np.float16


def test_statistics_of_half_precision_do_not_vanish():
    half = tff.TensorType(np.float16)
    value_type = tff.to_type(
        collections.OrderedDict(update=half, statistics=half, num_examples=np.float32)
    )
    process = StatisticsFactory().create(value_type, WEIGHT)
    value = collections.OrderedDict(
        update=np.float16(0.5), statistics=np.float16(0.25), num_examples=50_000.0
    )
    result = process.next(process.initialize(), [value] * 2, [50_000.0] * 2).result
    assert (result["update"], result["statistics"]) == (0.5, 0.25)
