"""The weights' sum beside what another factory makes of the values."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_algos.aggregators import TotalWeightFactory

VALUE = tff.TensorType(np.float64, [2])
FLOAT32 = tff.TensorType(np.float32)


def one_round(factory, values, weights):
    process = factory.create(VALUE, FLOAT32)
    values = [np.asarray(value, np.float64) for value in values]
    weights = [np.float32(weight) for weight in weights]
    return process.next(process.initialize(), values, weights)


def test_it_gives_the_mean_and_the_sum_of_the_weights():
    output = one_round(TotalWeightFactory(), [(4, 0), (0, 8), (9, 9)], [1, 3, 0])
    np.testing.assert_allclose(output.result["value"], (1, 6))
    assert output.result["total_weight"] == 4
    assert output.result["total_weight"].dtype == np.float32


def test_another_factory_makes_the_value():
    clipped = tff.aggregators.clipping_factory(1.0, tff.aggregators.MeanFactory())
    output = one_round(TotalWeightFactory(clipped), [(3, 4), (0, 1)], [2, 2])
    np.testing.assert_allclose(output.result["value"], (0.3, 0.9), rtol=1e-6)
    assert output.result["total_weight"] == 4
    assert output.measurements["clipped_count"] == 1


def test_an_unweighted_factory_is_refused_with_a_tip():
    with pytest.raises(TypeError, match="WeightedAggregationFactory.*as_weighted"):
        TotalWeightFactory(tff.aggregators.SumFactory())
