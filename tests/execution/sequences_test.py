"""Sequences as values, mapped, reduced and summed, as on TFF's own runtime."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import equivalence
from tests.testing.sequences_of_pairs import PAIRS, pairs

NUMBERS = tff.SequenceType(np.int64)
CLIENT_NUMBERS = tff.FederatedType(NUMBERS, tff.CLIENTS)

same = equivalence.assert_same_in_both


def ranges(*sizes):
    return [tf.data.Dataset.range(size) for size in sizes]


@tff.tensorflow.computation(np.int64, np.int64)
def _add(a, b):
    return a + b


@tff.tensorflow.computation(np.int64)
def _square(x):
    return x * x


def test_sequences_go_in_and_come_out_as_values():
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
def test_sequences_at_clients_are_reduced_as_on_tffs_runtime(sizes):
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
def test_sequences_at_clients_are_mapped_as_on_tffs_runtime(sizes):
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


def test_operators_apply_to_sequences_at_the_server():
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


def test_elements_may_have_any_structure():
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
