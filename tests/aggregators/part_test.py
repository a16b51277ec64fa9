"""A part of clients' values is aggregated; the rest is zero and never sent."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_algos import aggregators, execution

VALUE = tff.to_type(
    collections.OrderedDict(a=(np.float32, [2]), b=np.float64, c=(np.float32, [5]))
)
WEIGHT = tff.TensorType(np.float32)


def value(seed):
    rng = np.random.default_rng(seed)
    return collections.OrderedDict(
        a=rng.normal(size=2).astype(np.float32),
        b=rng.normal(),
        c=rng.normal(size=5).astype(np.float32),
    )


VALUES = [value(seed) for seed in range(5)]
WEIGHTS = [np.float32(weight) for weight in (1, 2, 0, 4, 1)]


def aggregate(factory):
    process = factory.create(VALUE, WEIGHT)
    state = process.initialize()
    with execution.measured_communication() as meter:
        output = process.next(state, VALUES, WEIGHTS)
    return output, meter.total.bytes_up / len(VALUES)


def test_the_part_is_the_inner_aggregate_and_the_rest_is_zero():
    output, sent = aggregate(aggregators.PartFactory([False, True, True]))
    weights = np.array(WEIGHTS) / sum(WEIGHTS)
    assert not np.any(output.result["a"])
    for name in "bc":
        expected = sum(w * each[name] for w, each in zip(weights, VALUES, strict=True))
        np.testing.assert_allclose(output.result[name], expected, rtol=1e-5)
    assert sent == 8 + 4 * 5 + 4


def test_tensors_are_in_the_order_of_the_values_type():
    names = ["kernel", "bias"]
    value_type = tff.to_type(collections.OrderedDict((n, np.float32) for n in names))
    process = aggregators.PartFactory([True, False]).create(value_type, WEIGHT)
    value = collections.OrderedDict(kernel=np.float32(1.0), bias=np.float32(5.0))
    output = process.next(process.initialize(), [value], [np.float32(1.0)])
    assert output.result == {"kernel": 1.0, "bias": 0.0}
    one = aggregators.PartFactory([True]).create(tff.TensorType(np.float32), WEIGHT)
    output = one.next(one.initialize(), [np.float32(2.0)], [np.float32(1.0)])
    assert output.result == 2.0


def test_with_every_tensor_it_is_the_inner_aggregate_to_the_bit():
    inner = tff.aggregators.MeanFactory()
    output, _ = aggregate(aggregators.PartFactory([True] * 3, inner))
    process = inner.create(VALUE, WEIGHT)
    expected = process.next(process.initialize(), VALUES, WEIGHTS)
    for name in VALUES[0]:
        np.testing.assert_array_equal(output.result[name], expected.result[name])
    assert output.measurements == expected.measurements


def test_with_no_tensor_nothing_is_sent():
    output, sent = aggregate(aggregators.PartFactory([False] * 3))
    assert not any(np.any(each) for each in output.result.values())
    assert sent == 0


def test_other_rules_see_the_part_alone():
    outlying = [collections.OrderedDict(each) for each in VALUES]
    outlying[0]["a"] = np.float32([1e9, -1e9])
    factory = aggregators.PartFactory([False, True, True], aggregators.KrumFactory(1))
    process = factory.create(VALUE, WEIGHT)
    ones = [np.float32(1)] * 5
    with_outlier = process.next(process.initialize(), outlying, ones)
    without = process.next(process.initialize(), VALUES, ones)
    np.testing.assert_array_equal(with_outlier.result["c"], without.result["c"])
    np.testing.assert_array_equal(
        with_outlier.measurements["shares"], without.measurements["shares"]
    )


def test_its_type_is_that_of_the_values():
    process = aggregators.PartFactory([False, True, False]).create(VALUE, WEIGHT)
    assert process.next.type_signature.result.result == tff.FederatedType(
        VALUE, tff.SERVER
    )


def test_bad_arguments_are_refused():
    for is_sent in ("abc", [0, 1, 1], None):
        with pytest.raises(ValueError, match="is_sent=.*: expected True or False"):
            aggregators.PartFactory(is_sent)
    with pytest.raises(ValueError, match="is_sent for 3 tensors, found 2"):
        aggregators.PartFactory([True, False]).create(VALUE, WEIGHT)
    with pytest.raises(TypeError, match=r"inner to be a tff\.aggregators\.Weighted"):
        aggregators.PartFactory([True], tff.aggregators.SumFactory())
