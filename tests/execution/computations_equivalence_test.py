"""Plain computations of every kind in this process, as on TFF's own runtime."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import equivalence

CLIENT_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)
_SOME_EMPTY = tff.to_type([(np.float32, [0]), (np.float32, [3]), (np.float32, [2, 0])])

same = equivalence.assert_same_in_both


def test_results_need_no_arguments():
    @tff.tensorflow.computation
    def constant():
        return collections.OrderedDict(a=tf.constant(1), b=(tf.zeros([2]), b"bytes"))

    same(constant)


def test_variables_are_made_anew_by_every_call():
    @tff.tensorflow.computation(np.float32)
    def count(x):
        variable = tf.Variable(10.0)
        table = tf.Variable(tf.zeros([2]))
        with tf.control_dependencies(
            [variable.assign_add(x), table.assign_add([x, 1.0])]
        ):
            return variable.read_value(), table.read_value()

    first = same(count, 1.0)
    assert first[0] == 11.0
    equivalence.assert_same(same(count, 1.0), first)


def test_variables_work_in_functions_and_loops():
    @tff.tensorflow.computation(np.int32)
    def powers(n):
        total = tf.Variable(1)

        @tf.function
        def step(i):
            total.assign(total * 2 + i)
            return i + 1

        tf.while_loop(lambda i: i < n, lambda i: [step(i)], [0])
        return total.read_value()

    for n in (0, 1, 5):
        same(powers, n)


def test_hash_tables_are_looked_up():
    @tff.tensorflow.computation(tff.TensorType(np.str_, [None]))
    def look_up(words):
        static = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(["a", "b"], [10, 20]), -1
        )
        vocabulary = tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(
                ["a", "b"], tf.constant([0, 1], tf.int64)
            ),
            num_oov_buckets=3,
        )
        return static.lookup(words), vocabulary.lookup(words), static.size()

    @tff.federated_computation(
        tff.FederatedType(tff.TensorType(np.str_, [None]), tff.CLIENTS)
    )
    def at_clients(words):
        return tff.federated_map(look_up, words)

    same(look_up, ["b", "c", "a"])
    same(at_clients, [["a"], [], ["c", "b", "b"]])


def test_strings_are_taken_and_given():
    @tff.tensorflow.computation(tff.TensorType(np.str_, [None]))
    def describe(words):
        return collections.OrderedDict(
            joined=tf.strings.reduce_join(words, separator="-"),
            lengths=tf.strings.length(words, unit="UTF8_CHAR"),
            parts=tf.strings.split(words, "b").to_tensor(default_value="?"),
            hashes=tf.strings.to_hash_bucket_fast(words, 1000),
        )

    same(describe, ["abc", "b", ""])


def test_control_flow_follows_its_arguments():
    @tff.tensorflow.computation(np.int32)
    @tf.function
    def collatz(n):
        steps = tf.TensorArray(tf.int32, 0, dynamic_size=True)
        i = 0
        while n > 1:
            steps = steps.write(i, n)
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            i += 1
        return steps.stack()

    for n in (1, 7):
        same(collatz, n)


def test_work_inside_may_be_sparse_or_ragged():
    @tff.tensorflow.computation(tff.TensorType(np.float32, [3, 4]))
    def total(x):
        sparse = tf.sparse.from_dense(x)
        ragged = tf.RaggedTensor.from_row_lengths(tf.range(6), [1, 2, 3])
        return tf.sparse.reduce_sum(sparse, 1), tf.reduce_max(ragged, 1)

    same(total, np.eye(3, 4, dtype=np.float32))


def test_gradients_are_taken_inside():
    @tff.tensorflow.computation(tff.TensorType(np.float32, [3]))
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.map_fn(tf.sin, x) ** 3)
        return tape.gradient(y, x)

    same(gradient, [0.1, 0.2, 0.3])


AGGREGATES = {
    "sum": tff.federated_sum,
    "mean": tff.federated_mean,
    "minimum": tff.federated_min,
    "maximum": tff.federated_max,
}


@pytest.mark.parametrize("clients", [[1.5], [3.0, -1.0, 2.5, 0.25], []])
@pytest.mark.parametrize("name", AGGREGATES)
def test_aggregates_are_the_same_of_any_number_of_clients(name, clients):
    @tff.federated_computation(CLIENT_FLOATS)
    def aggregate(x):
        return AGGREGATES[name](x)

    same(aggregate, clients)


def test_a_structure_has_a_weighted_mean():
    @tff.federated_computation(
        tff.FederatedType([("a", np.float32), ("b", (np.float32, [2]))], tff.CLIENTS),
        CLIENT_FLOATS,
    )
    def mean(x, weight):
        return tff.federated_mean(x, weight)

    values = [
        collections.OrderedDict(a=float(n), b=np.array([n, 1], np.float32))
        for n in range(4)
    ]
    same(mean, values, [1.0, 2.0, 3.0, 0.5])


def test_aggregation_may_be_of_ones_own():
    accumulator = tff.to_type([("total", np.float32), ("seen", (np.int32, [None]))])

    @tff.tensorflow.computation
    def zero():
        return collections.OrderedDict(total=0.0, seen=tf.zeros([0], tf.int32))

    @tff.tensorflow.computation(accumulator, np.float32)
    def accumulate(total, x):
        return collections.OrderedDict(
            total=total["total"] + x,
            seen=tf.concat([total["seen"], [tf.cast(x, tf.int32)]], 0),
        )

    @tff.tensorflow.computation(accumulator, accumulator)
    def merge(a, b):
        return collections.OrderedDict(
            total=a["total"] + b["total"], seen=tf.concat([a["seen"], b["seen"]], 0)
        )

    @tff.tensorflow.computation(accumulator)
    def report(total):
        return total["total"], tf.sort(total["seen"])

    @tff.federated_computation(CLIENT_FLOATS)
    def aggregate(x):
        return tff.federated_aggregate(x, zero(), accumulate, merge, report)

    same(aggregate, [3.0, 1.0, 2.0, 9.0])
    same(aggregate, [])


def test_a_zero_may_be_computed_at_the_server():
    @tff.tensorflow.computation(np.float32, np.float32)
    def add(a, b):
        return a + b

    @tff.federated_computation(CLIENT_FLOATS)
    def twice(x):
        first = tff.federated_sum(x)
        clients = tff.federated_map(add, (x, tff.federated_broadcast(first)))
        return tff.federated_sum(clients), first

    assert same(twice, [1.0, 2.0]) == (9.0, 3.0)


@tff.tensorflow.computation(np.float32)
def _half(x):
    return x / 2


def test_values_are_made_at_clients_and_at_the_server():
    @tff.tensorflow.computation
    def two():
        return tf.Variable(2.0).read_value() * 1.0

    @tff.federated_computation(CLIENT_FLOATS)
    def evaluate(x):
        return (
            tff.federated_eval(two, tff.CLIENTS),
            tff.federated_eval(two, tff.SERVER),
            tff.federated_sum(tff.federated_eval(two, tff.CLIENTS)),
            x,
        )

    same(evaluate, [0.0, 1.0, 2.0])


def test_arguments_may_be_functions():
    unary = tff.FunctionType(np.float32, np.float32)

    @tff.federated_computation(unary, CLIENT_FLOATS)
    def map_twice(function, x):
        return tff.federated_map(function, tff.federated_map(function, x))

    @tff.federated_computation(unary, np.float32)
    def apply_twice(function, x):
        return function(function(x))

    @tff.tensorflow.computation(np.float32)
    def plus_one(x):
        return x + 1

    context = equivalence.in_process()
    for function, expected in ((_half, [1.0, 2.0]), (plus_one, [6.0, 10.0])):
        assert equivalence.call(context, map_twice, function, [4.0, 8.0]) == expected
    assert same(apply_twice, _half, 4.0) == 1.0
    assert same(apply_twice, plus_one, 4.0) == 6.0


@tff.tensorflow.computation(_SOME_EMPTY)
def _mean_square(tensors):
    """The mean of all elements' squares, as a mean over the tensors by their sizes."""
    tensors = list(tensors)
    sizes = [tf.cast(tf.reduce_prod(tf.shape(t)), tf.float32) for t in tensors]
    means = [tf.reduce_mean(tf.square(t)) for t in tensors]
    parts = [mean * size / tf.add_n(sizes) for mean, size in zip(means, sizes)]
    weighted = [mean * (size / tf.add_n(sizes)) for mean, size in zip(means, sizes)]
    return tf.add_n(parts), tf.add_n(weighted), tf.add_n(sizes)


@tff.federated_computation(tff.FederatedType(_SOME_EMPTY, tff.CLIENTS))
def _mean_square_of_clients(tensors):
    return tff.federated_mean(tff.federated_map(_mean_square, tensors))


@pytest.mark.parametrize("num_clients", [1, 2, 5])
def test_a_mean_of_no_elements_counts_nothing_where_its_weight_is_zero(num_clients):
    """TFF's runtime takes NaN * 0 for 0 where the 0 is a constant."""
    tensors = [np.zeros([0], np.float32), np.float32([1, 2, 4]), np.zeros([2, 0], "f4")]
    same(_mean_square, tensors)
    found = same(_mean_square_of_clients, [tensors] * num_clients)
    np.testing.assert_allclose(found, [7, 7, 3], rtol=1e-6)
