"""Robust factories: TFF's processes, who is excluded, bad arguments, attacks."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.testing import problems
from tff_algos import aggregators
from tff_algos.models import FunctionalVariableModel

VALUE = tff.to_type(collections.OrderedDict(a=(np.float32, [2]), b=np.float64))
WEIGHT = tff.TensorType(np.float32)
FACTORIES = {
    "median": aggregators.MedianFactory(),
    "trimmed_mean": aggregators.TrimmedMeanFactory(0.25),
    "geometric_median": aggregators.GeometricMedianFactory(),
    "krum": aggregators.KrumFactory(1),
}


def _aggregate(factory, values, weights):
    process = factory.create(VALUE, WEIGHT)
    clients = [
        collections.OrderedDict(a=np.array([v, -v], np.float32), b=np.float64(v))
        for v in values
    ]
    output = process.next(process.initialize(), clients, list(map(np.float32, weights)))
    return output.result, output.measurements


@pytest.fixture(params=FACTORIES)
def factory(request):
    return FACTORIES[request.param]


def test_it_is_a_process_of_the_values_types(factory):
    process = factory.create(VALUE, WEIGHT)
    assert process.next.type_signature.result.result == tff.FederatedType(
        VALUE, tff.SERVER
    )
    with pytest.raises(TypeError, match="floating point"):
        factory.create(tff.TensorType(np.int32), WEIGHT)


def test_one_outlier_of_five_hardly_matters(factory):
    values = [1.0, 1.1, 0.9, 1.05, 1e6]
    result, measurements = _aggregate(factory, values, [1] * 5)
    assert 0.9 <= result["b"] <= 1.3
    np.testing.assert_allclose(result["a"], [result["b"], -result["b"]], rtol=1e-4)
    assert measurements["shares"][4] < 1e-3
    assert measurements["shares"].sum() == pytest.approx(1)


@pytest.mark.parametrize("size", [1e12, 3e38])
@pytest.mark.parametrize("name", ["median", "geometric_median", "krum"])
def test_two_outliers_of_any_size_among_nine_hardly_matter(name, size):
    factory = aggregators.KrumFactory(2) if name == "krum" else FACTORIES[name]
    honest = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98]
    for outliers in ([size, size], [-size, size], [1e3, size]):
        result, measurements = _aggregate(factory, [*outliers, *honest], [1] * 9)
        assert 0.9 <= result["b"] <= 1.1
        np.testing.assert_allclose(result["a"], [result["b"], -result["b"]], rtol=1e-3)
        assert measurements["shares"][:2].sum() < 1e-2


def test_clients_of_weight_zero_and_of_nan_are_excluded(factory):
    values = [1.0, np.nan, 1.1, 0.9, 7.0, 1.0]
    found, measurements = _aggregate(factory, values, [1, 1, 1, 1, 0, 1])
    expected, _ = _aggregate(factory, [1.0, 1.1, 0.9, 1.0], [1] * 4)
    np.testing.assert_allclose(found["b"], expected["b"], rtol=1e-12)
    assert measurements["num_non_finite_clients"] == 1
    assert measurements["num_left_out"] >= 2
    assert not np.any(measurements["shares"][[1, 4]])


def test_a_float64_whose_square_overflows_excludes_its_client(factory):
    value = tff.TensorType(np.float64, [2])
    process = factory.create(value, WEIGHT)
    clients = [np.full(2, v) for v in (1.0, 1e200, 1.1, 0.9, 1.0)]
    output = process.next(process.initialize(), clients, [np.float32(1)] * 5)
    np.testing.assert_allclose(output.result, 1.0, atol=0.1)
    assert output.measurements["num_non_finite_clients"] == 1


def test_without_clients_it_is_nan(factory):
    result, _ = _aggregate(factory, [1.0, np.inf], [0, 1])
    assert np.isnan(result["b"]) and np.all(np.isnan(result["a"]))


@pytest.mark.parametrize("share", [-0.1, 0.5, float("nan"), None])
def test_shares_that_leave_nobody_are_refused(share):
    with pytest.raises(ValueError, match=r"share=.*: expected a number in \[0, 0.5\)"):
        aggregators.TrimmedMeanFactory(share)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((-1,), "num_malicious=-1 .*: expected an integer >= 0"),
        ((1, 0), "num_chosen=0 .*: expected an integer >= 1"),
        ((True,), "num_malicious=True .*: expected an integer >= 0"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(args, message):
    with pytest.raises(ValueError, match=message):
        aggregators.KrumFactory(*args)


def test_it_fits_into_tffs_own_fedavg():
    process = tff.learning.algorithms.build_weighted_fed_avg(
        lambda: FunctionalVariableModel(problems.linear_model(np.float32)),
        tff.learning.optimizers.build_sgdm(0.1),
        model_aggregator=aggregators.MedianFactory(),
    )
    clients = problems.clients((6, 6, 6))
    data = [client.batches(dtype=np.float32) for client in clients]
    state = process.next(process.initialize(), data).state
    start = problems.initial_vector()
    ends = [client.local_sgd(start, 0.1)[0] for client in clients]
    np.testing.assert_allclose(
        problems.vector_of(process, state), np.median(ends, axis=0), rtol=1e-5
    )
