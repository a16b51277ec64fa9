"""Sequences and tf.data in this process, as on TFF's own runtime."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import equivalence

same = equivalence.assert_same_in_both

NUMBERS = tff.SequenceType(np.int64)
PAIRS = tff.SequenceType(
    collections.OrderedDict(x=tff.TensorType(np.float32, [2]), y=np.str_)
)
CLIENT_NUMBERS = tff.FederatedType(NUMBERS, tff.CLIENTS)


def pairs(count):
    return tf.data.Dataset.from_tensor_slices(
        collections.OrderedDict(
            x=np.arange(2.0 * count, dtype=np.float32).reshape([count, 2]),
            y=np.array([f"n{i}" for i in range(count)], np.str_),
        )
    )


def ranges(*sizes):
    return [tf.data.Dataset.range(size) for size in sizes]


@tff.tensorflow.computation(np.int64, np.int64)
def _add(a, b):
    return a + b


@tff.tensorflow.computation(np.int64)
def _square(x):
    return x * x


def test_sequences_as_values():
    @tff.federated_computation(NUMBERS)
    def through(numbers):
        return numbers

    @tff.tensorflow.computation(PAIRS)
    def evens(data):
        return data.batch(2).map(lambda pair: pair["y"]).repeat(2)

    same(through, tf.data.Dataset.range(4))
    same(evens, pairs(5))
    same(evens, pairs(0))


@pytest.mark.parametrize("sizes", [(3, 0, 5), (1,), ()])
def test_reductions_of_sequences_at_clients(sizes):
    @tff.federated_computation(NUMBERS)
    def work(numbers):
        return tff.sequence_sum(numbers), tff.sequence_reduce(
            numbers, np.int64(100), _add
        )

    @tff.federated_computation(CLIENT_NUMBERS)
    def sums(numbers):
        return tff.federated_sum(tff.federated_map(work, numbers))

    # TFF's own runtime reduces lists of elements only.
    found = equivalence.call(equivalence.in_process(), sums, ranges(*sizes))
    each = [sum(range(size)) for size in sizes]
    assert tuple(found) == (sum(each), sum(each) + 100 * len(sizes))


@pytest.mark.parametrize("sizes", [(3, 0, 5), (1,), ()])
def test_maps_of_sequences_at_clients(sizes):
    @tff.tensorflow.computation(np.int64)
    def with_square(x):
        return collections.OrderedDict(z=x * x, a=tf.strings.as_string(x))

    @tff.tensorflow.computation(tff.SequenceType(with_square.type_signature.result))
    def read(data):
        return data.reduce(
            (tf.constant(0, tf.int64), ""), lambda s, e: (s[0] + e["z"], s[1] + e["a"])
        )

    @tff.federated_computation(NUMBERS)
    def work(numbers):
        return read(tff.sequence_map(with_square, tff.sequence_map(_square, numbers)))

    @tff.federated_computation(CLIENT_NUMBERS)
    def maps(numbers):
        return tff.federated_map(work, numbers)

    found = equivalence.call(equivalence.in_process(), maps, ranges(*sizes))
    assert [tuple(client) for client in found] == [
        (
            sum(x**4 for x in range(size)),
            "".join(str(x * x) for x in range(size)).encode(),
        )
        for size in sizes
    ]


def test_operators_on_sequences_at_the_server():
    @tff.federated_computation(tff.FederatedType(NUMBERS, tff.SERVER))
    def total(numbers):
        return tff.sequence_sum(tff.sequence_map(_square, numbers))

    @tff.federated_computation(NUMBERS)
    def local(numbers):
        return tff.sequence_sum(tff.sequence_map(_square, numbers))

    for computation in (total, local):
        data = tf.data.Dataset.range(5)
        found = equivalence.call(equivalence.in_process(), computation, data)
        assert found == 30


def test_pipelines_at_clients():
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


def test_loops_over_data():
    @tff.tensorflow.computation(NUMBERS)
    @tf.function
    def work(data):
        total = tf.constant(0, tf.int64)
        for number in data:
            if number > 5:
                break
            total += number
        iterator = iter(data.batch(2))
        first = iterator.get_next_as_optional()
        return total, first.has_value(), data.cardinality()

    @tff.federated_computation(CLIENT_NUMBERS)
    def at_clients(data):
        return tff.federated_map(work, data)

    same(work, tf.data.Dataset.range(9))
    same(at_clients, ranges(3, 0, 9))


def test_reductions_in_reductions_and_in_functions():
    @tff.tensorflow.computation(NUMBERS)
    def work(data):
        @tf.function
        def inner(batch):
            rows = tf.data.Dataset.from_tensor_slices(batch)
            return rows.reduce(tf.constant(0, tf.int64), lambda a, b: a * 2 + b)

        return data.batch(3).reduce(
            (tf.constant(1, tf.int64), tf.constant(True)),
            lambda state, batch: (state[0] + inner(batch), state[1]),
        )

    same(work, tf.data.Dataset.range(8))
    same(work, tf.data.Dataset.range(0))


def test_reductions_whose_state_grows():
    @tff.tensorflow.computation(NUMBERS)
    def collect(data):
        return data.reduce(
            tf.zeros([0], tf.int64), lambda seen, x: tf.concat([seen, [x]], 0)
        )

    same(collect, tf.data.Dataset.range(4))


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


def test_elements_of_any_structure():
    element = collections.OrderedDict(
        a=np.int32, b=(np.str_, (np.float32, [None, 2])), c=collections.OrderedDict()
    )
    del element["c"]
    spec = tff.SequenceType(element)

    @tff.tensorflow.computation(spec)
    def last(data):
        return data.reduce(
            (0, "", tf.zeros([])),
            lambda state, e: (
                e["a"],
                tf.strings.join([state[1], e["b"][0]]),
                state[2] + tf.reduce_sum(e["b"][1]),
            ),
        )

    def generate():
        for i in range(3):
            yield collections.OrderedDict(a=i, b=(str(i), np.ones([i, 2], np.float32)))

    data = tf.data.Dataset.from_generator(
        generate,
        output_signature=collections.OrderedDict(
            a=tf.TensorSpec([], tf.int32),
            b=(tf.TensorSpec([], tf.string), tf.TensorSpec([None, 2], tf.float32)),
        ),
    )
    found = equivalence.call(equivalence.in_process(), last, data)
    # A generator cannot be sent to TFF's worker; its elements can.
    assert found == (2, b"012", 6.0)
    elements = list(data.as_numpy_iterator())
    assert tuple(same(last, elements[1:])) == (2, b"12", 6.0)


WORDS = tff.SequenceType(np.str_)


def words(*texts):
    return [tf.data.Dataset.from_tensor_slices(text.split()) for text in texts]


TEXTS = ("the cat and the dog", "the dog", "a cat cat")


def test_counts_of_distinct_words():
    count = tff.analytics.count_distinct.create_federated_hyperloglog_computation()
    same(count, words(*TEXTS))
    secure = tff.analytics.count_distinct.create_federated_hyperloglog_computation(
        use_secagg=True
    )
    same(secure, words(*TEXTS), secure=True)


@pytest.mark.parametrize("bits", [None, 16], ids=["plain", "secure"])
def test_heavy_hitters(bits):
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


def test_iblt_aggregation():
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
def test_hierarchical_histograms(secure):
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


def test_data_processing():
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


def test_for_loops_over_data_sets_with_variables_and_state():
    @tff.tensorflow.computation(tff.SequenceType(tff.TensorType(np.float32, [None])))
    def sums(dataset):
        total = tf.Variable(1.0)

        @tf.function
        def loop(dataset):
            count, decayed = 0, 0.0
            for batch in dataset:
                total.assign_add(tf.reduce_sum(batch))
                count += 1
                decayed = 0.5 * decayed + tf.reduce_mean(batch)
            for batch in dataset.take(2):
                total.assign_add(0.5 * tf.reduce_sum(batch))
            for batch in dataset:
                if total > 30.0:
                    break
                total.assign_add(batch[0])
            return total.read_value(), count, decayed

        return loop(dataset)

    data = tf.data.Dataset.range(8).map(lambda x: tf.cast(x, tf.float32)).batch(3)
    total, count, _ = equivalence.assert_same_in_both(sums, data)
    assert count == 3 and total > 30


def test_for_loops_take_no_step_of_an_empty_data_set():
    @tff.tensorflow.computation(tff.SequenceType(np.int32))
    def count(dataset):
        steps = tf.Variable(0)

        @tf.function
        def loop(dataset):
            for _ in dataset:
                steps.assign_add(1)
            return steps.read_value()

        return loop(dataset)

    assert equivalence.assert_same_in_both(count, []) == 0
