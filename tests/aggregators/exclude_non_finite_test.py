"""The exclusion of clients whose values are not finite."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.testing import problems
from tff_algos.aggregators import ExcludeNonFiniteFactory
from tff_algos.models.variable_model import FunctionalVariableModel

VALUE = tff.types.to_type([(np.float32, [2]), np.float32])
WEIGHT = tff.TensorType(np.float32)


def aggregate(process, values, weights):
    return process.next(process.initialize(), values, weights)


def test_only_finite_clients_count():
    process = ExcludeNonFiniteFactory().create(VALUE, WEIGHT)
    values = [
        (np.array([1, 2], np.float32), np.float32(3)),
        (np.array([np.nan, 0], np.float32), np.float32(0)),
        (np.array([5, 6], np.float32), np.float32(np.inf)),
        (np.array([3, 4], np.float32), np.float32(7)),
    ]
    output = aggregate(process, values, [1.0, 100.0, 100.0, 3.0])
    np.testing.assert_allclose(output.result[0], [2.5, 3.5])
    np.testing.assert_allclose(output.result[1], 6.0)
    assert output.measurements["num_non_finite_clients"] == 2


def test_a_client_whose_weight_is_not_finite_does_not_count():
    process = ExcludeNonFiniteFactory().create(tff.TensorType(np.float32), WEIGHT)
    output = aggregate(process, [1.0, 5.0], [np.nan, 2.0])
    assert output.result == 5.0
    assert output.measurements["num_non_finite_clients"] == 1


def test_it_wraps_and_is_wrapped_by_tffs_factories():
    inner = ExcludeNonFiniteFactory(
        tff.aggregators.clipping_factory(1.0, tff.aggregators.MeanFactory())
    )
    outer = tff.aggregators.zeroing_factory(100.0, inner)
    process = outer.create(tff.types.to_type((np.float32, [2])), WEIGHT)
    values = [np.array([3, 4], np.float32), np.array([np.nan, 1], np.float32)]
    output = aggregate(process, values, [1.0, 1.0])
    np.testing.assert_allclose(output.result, [0.6, 0.8], rtol=1e-6)


def test_stock_mimelite_survives_a_client_of_nan():
    def model_fn():
        return FunctionalVariableModel(problems.linear_model(np.float32))

    sgd = tff.learning.optimizers.build_sgdm

    def run(factory):
        process = tff.learning.algorithms.build_weighted_mime_lite(
            model_fn,
            base_optimizer=sgd(0.1, momentum=0.9),
            full_gradient_aggregator=factory,
        )
        good = [c.batches(2, 1, np.float32) for c in problems.clients()]
        broken = problems.Client(np.full((3, 5), np.nan), np.ones(3))
        weights, _ = problems.run(
            process, [*good, broken.batches(2, 1, np.float32)], good
        )
        without, _ = problems.run(process, good, good)
        return weights, without

    weights, without = run(ExcludeNonFiniteFactory())
    np.testing.assert_allclose(weights, without, rtol=1e-6)
    # What the factory is for: without it the shared optimizer state is lost, and
    # every later client with it.
    weights, without = run(None)
    assert not np.allclose(weights, without, rtol=1e-3)


def test_bad_arguments_are_named():
    with pytest.raises(TypeError, match=r"as_weighted_aggregator"):
        ExcludeNonFiniteFactory(tff.aggregators.SumFactory())
    with pytest.raises(TypeError, match=r"floating point tensors, found int32"):
        ExcludeNonFiniteFactory().create(tff.TensorType(np.int32), WEIGHT)
