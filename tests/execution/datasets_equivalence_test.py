"""Pipelines and analytics on datasets in this process, as on TFF's own runtime."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import equivalence
from tests.testing.sequences_of_pairs import PAIRS, pairs

NUMBERS = tff.SequenceType(np.int64)
CLIENT_NUMBERS = tff.FederatedType(NUMBERS, tff.CLIENTS)
WORDS = tff.SequenceType(np.str_)
TEXTS = ("the cat and the dog", "the dog", "a cat cat")

same = equivalence.assert_same_in_both


def ranges(*sizes):
    return [tf.data.Dataset.range(size) for size in sizes]


def test_clients_pipelines_give_the_same():
    @tff.tensorflow.computation(PAIRS)
    def read(data):
        data = data.shuffle(10, seed=3).map(
            lambda pair: (pair["x"] * 2, tf.strings.length(pair["y"]))
        )
        data = data.filter(lambda x, _: x[0] > 0).padded_batch(2).prefetch(1)
        windows = data.enumerate().take(3).cache()

        def add(sums, element):
            number, (x, length) = element
            total = tf.reduce_sum(x) + tf.cast(number, tf.float32)
            return sums[0] + total, tf.concat([sums[1], length], 0)

        return windows.reduce((0.0, tf.zeros([0], tf.int32)), add)

    @tff.federated_computation(tff.FederatedType(PAIRS, tff.CLIENTS))
    def work(data):
        return tff.federated_map(read, data)

    same(work, [pairs(5), pairs(1), pairs(0), pairs(9)])


@tff.tensorflow.computation(NUMBERS, np.int64)
def _scaled_sum(data, factor):
    return data.reduce(np.int64(0), lambda total, x: total + factor * x)


@pytest.mark.parametrize("num_clients", [1, 2, 6])
def test_clients_reduce_a_data_set_of_the_server(num_clients):
    @tff.federated_computation(
        tff.FederatedType(NUMBERS, tff.SERVER), tff.FederatedType(np.int64, tff.CLIENTS)
    )
    def of_server(data, factors):
        here = tff.federated_broadcast(data)
        return tff.federated_sum(tff.federated_map(_scaled_sum, (here, factors)))

    @tff.federated_computation(
        tff.FederatedType(NUMBERS, tff.CLIENTS, all_equal=True),
        tff.FederatedType(np.int64, tff.CLIENTS),
    )
    def shared(data, factors):
        return tff.federated_sum(tff.federated_map(_scaled_sum, (data, factors)))

    factors = list(range(1, num_clients + 1))
    for work in (of_server, shared):
        for kwargs in ({}, {"batch_clients": True}):
            context = equivalence.in_process(**kwargs)
            data = tf.data.Dataset.range(4)
            assert equivalence.call(context, work, data, factors) == 6 * sum(factors)


def test_clients_keep_data_sets_as_results():
    @tff.tensorflow.computation(NUMBERS)
    def doubled(data):
        return data.map(lambda x: 2 * x)

    @tff.federated_computation(CLIENT_NUMBERS)
    def work(data):
        return tff.federated_map(doubled, data)

    context = equivalence.in_process()
    found = equivalence.call(context, work, ranges(2, 3))
    assert [list(data.as_numpy_iterator()) for data in found] == [[0, 2], [0, 2, 4]]


def words(*texts):
    return [tf.data.Dataset.from_tensor_slices(text.split()) for text in texts]


def test_distinct_words_are_counted():
    count = tff.analytics.count_distinct.create_federated_hyperloglog_computation()
    same(count, words(*TEXTS))
    secure = tff.analytics.count_distinct.create_federated_hyperloglog_computation(
        use_secagg=True
    )
    same(secure, words(*TEXTS), secure=True)


@pytest.mark.parametrize("bits", [None, 16], ids=["plain", "secure"])
def test_heavy_hitters_are_the_same(bits):
    find = tff.analytics.heavy_hitters.iblt.build_iblt_computation(
        capacity=20,
        string_max_bytes=8,
        max_words_per_user=4,
        multi_contribution=True,
        secure_sum_bitwidth=bits,
        batch_size=2,
    )
    data = [each.batch(2) for each in words(*TEXTS)]
    ours, theirs = equivalence.contexts(secure=bits is not None)
    found = equivalence.call(ours, find, data)
    expected = equivalence.call(theirs, find, data)
    # Decoding finds them in an order that is random.
    assert counts(found) == counts(expected)
    assert counts(found)[b"cat"] >= 2
    assert (found.clients, found.num_not_decoded) == (3, 0)


def counts(output):
    words = np.asarray(output.heavy_hitters).tolist()
    numbers = np.asarray(output.heavy_hitters_counts).tolist()
    return dict(zip(words, numbers, strict=True))


def test_aggregation_by_iblt_is_the_same():
    factory = tff.analytics.IbltFactory(
        capacity=20, string_max_bytes=8, repetitions=3, seed=1
    )
    spec = tff.SequenceType(
        collections.OrderedDict(key=np.str_, value=tff.TensorType(np.int64, [1]))
    )
    process = factory.create(spec)

    def client(**counts):
        return tf.data.Dataset.from_tensor_slices(
            collections.OrderedDict(
                key=list(counts), value=np.array([[n] for n in counts.values()])
            )
        )

    clients = [client(cat=1, dog=2), client(cat=3), client(bird=5)]
    ours, theirs = equivalence.contexts()
    decoded = []
    for context in (ours, theirs):
        state = equivalence.call(context, process.initialize)
        result = equivalence.call(context, process.next, state, clients).result
        decoded.append(
            dict(
                zip(
                    result.output_strings.tolist(),
                    result.string_values[:, 0].tolist(),
                    strict=True,
                )
            )
        )
    assert decoded[0] == decoded[1] == {b"cat": 4, b"dog": 2, b"bird": 5}


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure"])
def test_hierarchical_histograms_are_the_same(secure):
    process = tff.analytics.build_hierarchical_histogram_process(
        0.0, 8.0, 8, max_records_per_user=20, enable_secure_sum=secure
    )
    rng = np.random.default_rng(0)
    clients = [
        tf.data.Dataset.from_tensor_slices(rng.uniform(0, 8, n).astype(np.float32))
        for n in (5, 12, 1)
    ]
    ours, theirs = equivalence.contexts(secure)
    outputs = []
    for context in (ours, theirs):
        state = equivalence.call(context, process.initialize)
        outputs.append(equivalence.call(context, process.next, state, clients))
    # The state holds the time of the round.
    (_, found), (_, expected) = outputs
    equivalence.assert_same(found, expected)


def test_data_are_processed_as_on_tffs_runtime():
    processing = tff.analytics.data_processing

    @tff.tensorflow.computation(tff.SequenceType(tff.TensorType(np.str_, [None])))
    def describe(data):
        return (
            processing.get_all_elements(data),
            processing.get_capped_elements(data, 3),
            processing.get_unique_elements(data),
            processing.get_unique_elements_with_counts(data),
            processing.get_top_elements(data, 2),
        )

    @tff.tensorflow.computation(WORDS)
    def stack(data):
        return processing.to_stacked_tensor(data)

    (data,) = words("the cat and the dog the cat")
    same(stack, data)
    same(describe, data.batch(2))
