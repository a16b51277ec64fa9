"""Compressed sums: their result, their error, what is sent, and bad arguments."""

import collections
import math

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.testing import tiny_task
from tests.testing.plane_processes import points
from tff_algos import aggregators, execution

SIZE = 2048
VALUE = tff.to_type(
    collections.OrderedDict(large=(np.float32, [SIZE]), small=(np.float32, [3]))
)
FACTORIES = {
    "quantized": aggregators.build_quantized_sum(8),
    "rotated": aggregators.build_quantized_sum(8, rotate=True),
    "topk": aggregators.TopKSumFactory(0.25),
}


def value(seed):
    rng = np.random.default_rng(seed)
    return collections.OrderedDict(
        large=rng.normal(size=SIZE).astype(np.float32),
        small=rng.normal(size=3).astype(np.float32),
    )


def aggregate(factory, values, value_type=VALUE):
    process = factory.create(value_type)
    with execution.measured_communication() as meter:
        output = process.next(process.initialize(), values)
    return output.result, meter.total.bytes_up / len(values)


@pytest.mark.parametrize("name", FACTORIES)
def test_it_is_a_sum_of_the_values_type(name):
    process = FACTORIES[name].create(VALUE)
    assert process.next.type_signature.result.result == tff.FederatedType(
        VALUE, tff.SERVER
    )


@pytest.mark.parametrize("bits", [2, 8, 12])
def test_quantized_numbers_are_within_a_level_and_small_tensors_exact(bits):
    values = [value(seed) for seed in range(3)]
    result, _ = aggregate(aggregators.build_quantized_sum(bits), values)
    levels = [np.ptp(each["large"]) / (2**bits - 1) for each in values]
    exact = sum(each["large"].astype(np.float64) for each in values)
    assert np.abs(result["large"] - exact).max() <= sum(levels) * 1.001
    np.testing.assert_allclose(
        result["small"], sum(each["small"] for each in values), rtol=1e-6
    )


def test_quantization_is_unbiased():
    # A number 0.3 of the way between two levels is rounded up in 3 of 10 cases.
    numbers = np.full(SIZE, 0.3, np.float32)
    numbers[0], numbers[1] = 0.0, 1.0
    factory = aggregators.build_quantized_sum(1)
    result, _ = aggregate(factory, [numbers], VALUE.large)
    assert set(np.unique(result)) == {0.0, 1.0}
    # Five standard deviations.
    assert abs(result.mean() - 0.3) < 5 * math.sqrt(0.3 * 0.7 / SIZE)


def test_a_rotation_narrows_the_range_of_an_outlier():
    numbers = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
    numbers[7] = 1000
    errors = []
    for rotate in (False, True):
        factory = aggregators.build_quantized_sum(4, rotate=rotate)
        result, _ = aggregate(factory, [numbers], VALUE.large)
        errors.append(np.square(result - numbers).mean())
    assert errors[1] < errors[0] / 10


def test_quantized_tensors_are_sent_in_their_bits():
    values = [value(seed) for seed in range(4)]
    for bits in (4, 8):
        _, sent = aggregate(aggregators.build_quantized_sum(bits), values)
        # Integers of which 28 bits are used, and a range of two numbers.
        packed = 4 * math.ceil(SIZE * bits / 28) + 8
        assert packed + 4 * 3 <= sent <= packed + 4 * 3 + 32


# Of equal magnitudes, either may be kept, so all are different.
@hypothesis.given(
    arrays.arrays(
        np.float64,
        36,
        elements=st.floats(-100, 100),
        unique=True,
        fill=st.nothing(),
    ).filter(lambda numbers: np.unique(np.abs(numbers)).size == 36),
    st.floats(0.01, 1),
)
@hypothesis.settings(max_examples=15, deadline=None)
def test_top_k_sums_the_largest_of_every_client(numbers, share):
    rows = numbers.reshape(3, 12)
    result, sent = aggregate(
        aggregators.TopKSumFactory(share), list(rows), tff.TensorType(np.float64, [12])
    )
    k = math.ceil(share * 12)
    kept = np.zeros_like(rows)
    for row, own in zip(rows, kept, strict=True):
        largest = np.argsort(-np.abs(row), kind="stable")[:k]
        own[largest] = row[largest]
    np.testing.assert_allclose(result, kept.sum(0), atol=1e-12)
    assert sent == k * (8 + 4)


def test_top_k_of_everything_is_the_sum():
    values = [value(seed) for seed in range(5)]
    result, _ = aggregate(aggregators.TopKSumFactory(1.0), values)
    for name in values[0]:
        expected = sum(each[name] for each in values)
        np.testing.assert_allclose(result[name], expected, rtol=1e-5, atol=1e-6)


def test_top_k_looks_at_all_tensors_together():
    one = collections.OrderedDict(
        large=np.full(SIZE, 0.1, np.float32), small=np.array([5, -6, 0], np.float32)
    )
    factory = aggregators.TopKSumFactory(2 / (SIZE + 3))
    result, sent = aggregate(factory, [one])
    np.testing.assert_array_equal(result["small"], [5, -6, 0])
    assert not np.any(result["large"])
    assert sent == 2 * 8


def losses(sum_factory):
    process = tff.learning.algorithms.build_weighted_fed_avg(
        tiny_task.model(),
        tff.learning.optimizers.build_sgdm(0.1),
        model_aggregator=tff.aggregators.MeanFactory(sum_factory),
    )
    cohort = [points(20, seed).batch(5) for seed in range(4)]
    state, found = process.initialize(), []
    for _ in range(10):
        output = process.next(state, cohort)
        state = output.state
        found.append(output.metrics["client_work"]["train"]["loss"])
    return found


@pytest.mark.parametrize("name", FACTORIES)
def test_stock_fed_avg_learns_with_it_about_as_much_as_without(name):
    first, *_, last = losses(None)
    compressed = losses(FACTORIES[name])
    assert compressed[0] == first
    assert first - compressed[-1] > 0.7 * (first - last)


@pytest.mark.parametrize("bits", [0, 17, 2.5, "8"])
def test_bits_that_cannot_be_are_refused(bits):
    with pytest.raises(ValueError, match=r"bits=.*: expected an integer in \[1, 16\]"):
        aggregators.build_quantized_sum(bits)


@pytest.mark.parametrize("share", [0.0, 1.5, float("nan"), "half"])
def test_shares_that_cannot_be_are_refused(share):
    with pytest.raises(ValueError, match=r"share=.*: expected a number in \(0, 1\]"):
        aggregators.TopKSumFactory(share)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (tff.TensorType(np.int32, [4]), "floating point"),
        (tff.TensorType(np.float32, [None]), "known shape and of one dtype"),
        (tff.to_type([np.float32, np.float64]), "known shape and of one dtype"),
    ],
)
def test_types_that_cannot_be_are_refused(bad, message):
    with pytest.raises(TypeError, match=message):
        aggregators.TopKSumFactory().create(bad)


def test_values_of_one_tensor_work_too():
    result, _ = aggregate(
        aggregators.TopKSumFactory(0.5),
        [np.float32([3, 1])],
        tff.TensorType(np.float32, [2]),
    )
    np.testing.assert_array_equal(result, [3, 0])
    assert tf.as_dtype(result.dtype) == tf.float32


def test_quantized_tensors_have_a_known_shape():
    with pytest.raises(TypeError, match=r"known shape, found float32\[\?\]"):
        aggregators.build_quantized_sum().create(tff.TensorType(np.float32, [None]))
