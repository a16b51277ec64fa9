"""What is random is distributed in this process as on TFF's own runtime."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import equivalence

aggregators = tff.aggregators

LONG = tff.TensorType(np.float32, [4000])


def results(process, *args, secure=False):
    """Results of one round: in this process, and on TFF's own runtime."""
    ours, theirs = equivalence.contexts(secure)
    outputs = []
    for context in (ours, theirs):
        state = equivalence.call(context, process.initialize)
        outputs.append(equivalence.call(context, process.next, state, *args))
    return [np.asarray(output.result, np.float64) for output in outputs]


def assert_same_distribution(found, expected, deviation=None):
    """Asserts that means and deviations agree within five standard errors.

    Where the deviation is known, TFF's is not looked at: it seeds clients by the
    clock, and those that start in the same tick draw the same numbers.
    """
    error = np.hypot(np.std(found), np.std(expected)) / np.sqrt(found.size)
    assert abs(np.mean(found) - np.mean(expected)) < 5 * error
    if deviation is None:
        deviation = np.std(expected)
    np.testing.assert_allclose(np.std(found), deviation, rtol=5 / np.sqrt(found.size))
    assert not np.array_equal(found, expected)


PRIVATE = {
    "gaussian_fixed": lambda: aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
        1.5, 2.0, 1.0
    ),
    "gaussian_adaptive": lambda: (
        aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(1.5, 20.0)
    ),
    "tree_adaptive": lambda: aggregators.DifferentiallyPrivateFactory.tree_adaptive(
        1.5, 20.0, tf.TensorSpec([4000], tf.float32)
    ),
}


@pytest.mark.parametrize("name", PRIVATE)
def test_noise_of_private_aggregation_has_the_same_distribution(name):
    process = PRIVATE[name]().create(LONG)
    clients = [np.full([4000], 0.001 * n, np.float32) for n in range(2)]
    found, expected = results(process, clients)
    assert_same_distribution(found, expected)
    if name == "gaussian_fixed":
        np.testing.assert_allclose(np.std(found), 1.5 / 2, rtol=0.1)


@pytest.mark.parametrize("noise", [0.3, 0.6])
def test_noise_of_distributed_privacy_has_the_same_distribution(noise):
    factory = aggregators.distributed_dp.DistributedDpSumFactory(
        noise, expected_clients_per_round=3, bits=20, l2_clip=1.0
    )
    process = factory.create(LONG)
    clients = [np.full([4000], 0.001 * n, np.float32) for n in range(3)]
    # TFF's test context cannot compile it: its proto is nested too deeply.
    context = equivalence.in_process(insecure_aggregation=True)
    state = equivalence.call(context, process.initialize)
    total = equivalence.call(context, process.next, state, clients).result
    np.testing.assert_allclose(np.mean(total), 0.003, atol=5 * noise / np.sqrt(4000))
    np.testing.assert_allclose(np.std(total), noise, rtol=0.1)


def test_stochastic_rounding_rounds_up_or_down_and_is_unbiased():
    factory = aggregators.discretization.DiscretizationFactory(
        aggregators.SumFactory(), scale_factor=1.0, stochastic=True, beta=0.0
    )
    clients = [np.full([4000], 0.3, np.float32)] * 3
    found, expected = results(factory.create(LONG), clients)
    assert_same_distribution(found, expected, deviation=np.sqrt(3 * 0.3 * 0.7))
    assert set(np.unique(found)) <= {0.0, 1.0, 2.0, 3.0}


def test_quantized_sums_are_unbiased():
    factory = aggregators.EncodedSumFactory.quantize_above_threshold(
        quantization_bits=2, threshold=10
    )
    values = np.full([4000], 0.1, np.float32)
    values[0], values[1] = 0.0, 1.0
    found, expected = results(factory.create(LONG), [values] * 3)
    assert_same_distribution(found[2:], expected[2:])
    assert abs(np.mean(found[2:]) - 0.3) < 0.02


def test_compressed_updates_are_near_the_mean():
    process = tff.learning.compression_aggregator().create(
        tff.TensorType(np.float32, [40_000]), tff.TensorType(np.float32)
    )
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=40_000).astype(np.float32) / 500 for _ in range(3)]
    mean = np.mean(clients, axis=0)
    found, expected = results(process, clients, [np.float32(1.0)] * 3)
    errors = [
        np.linalg.norm(x - mean) / np.linalg.norm(mean) for x in (found, expected)
    ]
    assert 0 < errors[0] < 0.1
    np.testing.assert_allclose(errors[0], errors[1], rtol=0.1)


SAMPLED_TYPE = tff.to_type(collections.OrderedDict(a=np.int32, b=(np.float32, [2])))


def sampled(clients):
    return [
        collections.OrderedDict(
            a=np.int32(n), b=np.array([n, np.nan if n == 1 else -n], np.float32)
        )
        for n in range(clients)
    ]


@pytest.mark.parametrize(("clients", "size"), [(9, 4), (3, 4), (0, 4)])
def test_a_sample_is_of_clients_and_of_its_size(clients, size):
    process = aggregators.UnweightedReservoirSamplingFactory(size).create(SAMPLED_TYPE)
    ours, _ = equivalence.contexts()
    state = equivalence.call(ours, process.initialize)
    output = equivalence.call(ours, process.next, state, sampled(clients))
    chosen = output.result["a"]
    assert len(set(chosen)) == len(chosen) == min(clients, size)
    assert set(chosen) <= set(range(clients))
    np.testing.assert_array_equal(output.result["b"][:, 0], chosen)
    assert output.measurements == collections.OrderedDict(a=0, b=int(clients > 1))
    theirs = process.next(process.initialize(), sampled(clients))
    assert theirs.result["a"].dtype == chosen.dtype
    assert theirs.result["a"].shape == chosen.shape


def test_every_client_is_sampled_at_some_time():
    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def sample(values):
        return aggregators.federated_sample(values, 2)

    seen = collections.Counter()
    for _ in range(60):
        chosen = equivalence.call(equivalence.in_process(), sample, list(range(4)))
        assert len(set(chosen)) == 2
        seen.update(chosen.tolist())
    assert set(seen) == set(range(4))
    assert min(seen.values()) > 10


def test_random_ops_give_other_numbers_to_every_client_and_at_every_call():
    @tff.tensorflow.computation
    def uniform():
        # In single precision, two of 100 numbers are equal once in 1,700 runs.
        return tf.random.uniform([], dtype=tf.float64)

    @tff.federated_computation
    def each():
        return tff.federated_eval(uniform, tff.CLIENTS)

    context = equivalence.execution.InProcessContext(default_num_clients=50)
    numbers = [x for _ in range(2) for x in equivalence.call(context, each)]
    assert len(set(numbers)) == 100
    assert 0.35 < np.mean(numbers) < 0.65


def test_stateless_random_ops_are_equal():
    @tff.tensorflow.computation(tff.TensorType(np.int64, [2]))
    def normal(seed):
        return tf.random.stateless_normal([5], seed), tf.random.stateless_uniform(
            [3], seed, maxval=10, dtype=tf.int32
        )

    equivalence.assert_same_in_both(normal, [1, 2])
