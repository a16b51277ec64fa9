"""tff.aggregators in this process: what TFF's own runtime computes."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import equivalence
from tff_algos import execution

aggregators = tff.aggregators

VALUE_TYPE = tff.to_type(
    collections.OrderedDict(a=np.float32, b=(np.float32, [3]), c=(np.float32, [2, 2]))
)
QUANTILE = functools.partial(
    aggregators.PrivateQuantileEstimationProcess.no_noise, 1.0, 0.5, 0.2
)


def values(count, seed=0):
    rng = np.random.default_rng(seed)

    def value():
        scale = rng.exponential(2.0)
        return collections.OrderedDict(
            a=np.float32(scale * rng.normal()),
            b=(scale * rng.normal(size=3)).astype(np.float32),
            c=(scale * rng.normal(size=[2, 2])).astype(np.float32),
        )

    return [value() for _ in range(count)]


def weights(count):
    return [np.float32(1 + number % 3) for number in range(count)]


def dp_clip(noise=0.0):
    return aggregators.DifferentiallyPrivateFactory.gaussian_fixed(noise, 5.0, 1.0)


SPECS = collections.OrderedDict(
    a=tf.TensorSpec([], tf.float32),
    b=tf.TensorSpec([3], tf.float32),
    c=tf.TensorSpec([2, 2], tf.float32),
)

UNWEIGHTED = {
    "sum": aggregators.SumFactory,
    "mean": aggregators.UnweightedMeanFactory,
    "clipping": lambda: aggregators.clipping_factory(1.5, aggregators.SumFactory()),
    "adaptive clipping": lambda: aggregators.clipping_factory(
        QUANTILE(), aggregators.UnweightedMeanFactory()
    ),
    "zeroing": lambda: aggregators.zeroing_factory(
        3.0, aggregators.SumFactory(), norm_order=2.0
    ),
    "adaptive zeroing": lambda: aggregators.zeroing_factory(
        QUANTILE(multiplier=2.0), aggregators.UnweightedMeanFactory()
    ),
    "concatenation": lambda: aggregators.concat_factory(aggregators.SumFactory()),
    "gaussian_fixed without noise": dp_clip,
    "gaussian_adaptive without noise": lambda: (
        aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(
            0.0, 5.0, clipped_count_stddev=0.0
        )
    ),
    "encoded without compression": lambda: (
        aggregators.EncodedSumFactory.quantize_above_threshold(
            quantization_bits=8, threshold=1000
        )
    ),
    "measurements": lambda: aggregators.add_measurements(
        aggregators.SumFactory(),
        client_measurement_fn=lambda value: collections.OrderedDict(
            largest=tff.federated_max(tff.federated_map(_first, value))
        ),
        server_measurement_fn=lambda value: collections.OrderedDict(total=value),
    ),
}


@tff.tensorflow.computation(VALUE_TYPE)
def _first(value):
    return value["a"]


@pytest.mark.parametrize("name", UNWEIGHTED)
def test_unweighted_aggregation_is_the_same(name):
    process = UNWEIGHTED[name]().create(VALUE_TYPE)
    equivalence.assert_same_rounds(
        process,
        *[(values(count, seed),) for seed, count in enumerate((5, 1, 8))],
        atol=1e-6,
    )


SEEDED_BY_TIME = {
    "hadamard": lambda: aggregators.HadamardTransformFactory(num_repeats=2),
    "discrete fourier": aggregators.DiscreteFourierTransformFactory,
    "tree_aggregation without noise": lambda: (
        aggregators.DifferentiallyPrivateFactory.tree_aggregation(0.0, 5.0, 1.0, SPECS)
    ),
}


@pytest.mark.parametrize("name", SEEDED_BY_TIME)
def test_aggregation_whose_state_is_seeded_by_the_time_is_the_same(name):
    process = SEEDED_BY_TIME[name]().create(VALUE_TYPE)
    equivalence.assert_same_rounds(
        process,
        *[(values(count, seed),) for seed, count in enumerate((5, 1, 8))],
        atol=1e-5,
        seeded_by_time=True,
    )


WEIGHTED = {
    "mean": aggregators.MeanFactory,
    "mean without division by zero": lambda: aggregators.MeanFactory(
        no_nan_division=True
    ),
    "robust": tff.learning.robust_aggregator,
    "measurements": lambda: tff.learning.add_debug_measurements(
        aggregators.MeanFactory()
    ),
    "private": lambda: aggregators.as_weighted_aggregator(dp_clip()),
    "concatenation": lambda: aggregators.concat_factory(aggregators.MeanFactory()),
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_weighted_aggregation_is_the_same(name):
    process = WEIGHTED[name]().create(VALUE_TYPE, tff.TensorType(np.float32))
    equivalence.assert_same_rounds(
        process,
        *[
            (values(count, seed), weights(count))
            for seed, count in enumerate((5, 1, 8))
        ],
        atol=1e-6,
    )


@pytest.mark.parametrize("name", ["mean", "mean without division by zero"])
def test_weights_that_sum_to_zero_give_the_same(name):
    process = WEIGHTED[name]().create(VALUE_TYPE, tff.TensorType(np.float32))
    equivalence.assert_same_rounds(process, (values(3), 3 * [np.float32(0.0)]))
    equivalence.assert_same_rounds(process, ([], []))


def test_values_that_are_not_finite_give_the_same():
    process = UNWEIGHTED["adaptive zeroing"]().create(VALUE_TYPE)
    sick = values(4)
    sick[1]["b"][0] = np.inf
    sick[2]["c"][1, 1] = np.nan
    (output,) = equivalence.assert_same_rounds(process, (sick,))
    assert output.measurements["zeroed_count"] >= 2


def test_integers_are_summed_exactly():
    value_type = tff.to_type([(np.int64, [2]), np.int32, np.uint8, np.bool_][:3])
    process = aggregators.SumFactory().create(value_type)
    client = (np.array([2**60, -1]), np.int32(2**30), np.uint8(100))
    (output,) = equivalence.assert_same_rounds(process, ([client, client],))
    np.testing.assert_array_equal(output.result[0], [2**61, -2])


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_quantiles_are_the_same(quantile):
    process = aggregators.PrivateQuantileEstimationProcess.no_noise(
        1.0, quantile, 0.2, multiplier=2.0, increment=0.5
    )
    norms = [np.float32(x) for x in (0.5, 1.5, 2.5, 3.5)]
    states = equivalence.assert_same_rounds(process, *5 * [(norms,)])
    equivalence.assert_same_in_both(process.report, states[-1])


def test_rounding_to_a_grid_is_the_same():
    factory = aggregators.discretization.DiscretizationFactory(
        aggregators.SumFactory(), scale_factor=10.0
    )
    process = factory.create(VALUE_TYPE)
    (output,) = equivalence.assert_same_rounds(process, (values(6),))
    np.testing.assert_allclose(
        10 * output.result["b"], np.round(10 * output.result["b"]), atol=1e-4
    )


def test_modular_clipping_is_the_same():
    factory = aggregators.modular_clipping.ModularClippingSumFactory(-8, 8)
    process = factory.create(tff.TensorType(np.int32, [3]))
    clients = [np.array([9, -9, n], np.int32) for n in range(5)]
    (output,) = equivalence.assert_same_rounds(process, (clients,))
    assert np.all(np.abs(output.result) <= 8)


SECURE = {
    "secure sum": lambda: aggregators.SecureSumFactory(8.0, -8.0),
    "adaptive secure sum": lambda: aggregators.SecureSumFactory(
        QUANTILE(secure_estimation=True)
    ),
    "secure": lambda: tff.learning.secure_aggregator(weighted=False),
}


@pytest.mark.parametrize("name", ["secure sum", "adaptive secure sum"])
def test_secure_sums_in_the_clear_are_the_same(name):
    process = SECURE[name]().create(VALUE_TYPE)
    equivalence.assert_same_rounds(
        process,
        *[(values(count, seed),) for seed, count in enumerate((5, 1, 8))],
        atol=1e-5,
        secure=True,
    )


@pytest.mark.slow
def test_a_weighted_secure_mean_in_the_clear_is_the_same():
    process = tff.learning.secure_aggregator().create(
        VALUE_TYPE, tff.TensorType(np.float32)
    )
    equivalence.assert_same_rounds(
        process,
        (values(5), weights(5)),
        (values(3), weights(3)),
        atol=1e-5,
        secure=True,
    )


def test_secure_sums_of_integers_in_the_clear_are_the_same():
    whole = tff.TensorType(np.int32, [3])
    clients = [np.array([n, 100, -n], np.int32) for n in range(5)]
    for factory in (
        aggregators.SecureSumFactory(10, -10),
        aggregators.SecureModularSumFactory(32, symmetric_range=True),
    ):
        equivalence.assert_same_rounds(factory.create(whole), (clients,), secure=True)


@pytest.mark.parametrize("name", SECURE)
def test_secure_sums_are_refused_unless_asked_for(name):
    process = SECURE[name]().create(VALUE_TYPE)
    with pytest.raises(
        execution.UnsupportedComputationError,
        match=r"federated_secure_\w+.*insecure_aggregation=True",
    ):
        equivalence.call(
            equivalence.in_process(), process.next, process.initialize(), values(2)
        )
