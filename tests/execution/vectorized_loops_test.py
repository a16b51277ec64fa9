"""Vectorized loops and lists: the same as for each client alone."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tf_keras
from tensorflow.python.ops.parallel_for import pfor

from tests.testing import equivalence
from tests.testing.leaves import leaf_of
from tests.testing.vectorized_leaves import assert_same_as_alone, vectorized
from tff_algos import layers
from tff_algos.execution import (
    vectorization_faults,
    vectorized_loops,
)

SCALAR = tf.TensorSpec([], tf.float32)


def branches(function):
    return [op for op in function.graph.get_operations() if op.type in ("If", "Case")]


def test_a_loop_that_all_clients_leave_together_has_no_branches():
    def power(x):
        _, result = tf.while_loop(
            lambda n, _: n < 3, lambda n, y: (n + 1, x * y), (0, tf.ones([]))
        )
        return [result]

    leaf, x = leaf_of(power, SCALAR), tf.constant([1.0, 2.0, 3.0])
    function = vectorized(leaf, x, stacked=[True])
    np.testing.assert_allclose(function(x)[0], [1, 8, 27])
    loops = [op for op in function.graph.get_operations() if op.type == "While"]
    bodies = [function.graph._get_function(op.get_attr("body").name) for op in loops]
    assert not any(map(branches, bodies))


def test_clients_may_leave_a_loop_at_different_times():
    def halve(x):
        return [
            *tf.while_loop(lambda y, n: y > 1, lambda y, n: (y / 2, n + 1), (x, 0.0))
        ]

    assert_same_as_alone(leaf_of(halve, SCALAR), tf.constant([8.0, 0.5, 3.0]))


def test_what_differs_only_after_an_iteration_is_stacked_before_it():
    """Two variables that begin as constants; the second differs one iteration later."""

    def chain(x):
        return [
            *tf.while_loop(
                lambda n, a, b: n < 4,
                lambda n, a, b: (n + 1, a + x, a + b),
                (0, tf.zeros([]), tf.zeros([])),
            )[1:]
        ]

    assert_same_as_alone(leaf_of(chain, SCALAR), tf.constant([1.0, 2.0, 5.0]))


def test_what_a_loop_sets_to_a_constant_is_still_every_clients():
    def forget(x):
        return [
            *tf.while_loop(
                lambda n, y: n < 2, lambda n, y: (n + 1, tf.constant(7.0)), (0, x)
            )[1:]
        ]

    assert_same_as_alone(leaf_of(forget, SCALAR), tf.constant([1.0, 2.0]))


def test_a_loop_within_a_loop_and_one_without_iterations():
    def nested(x):
        def outer(n, y):
            _, z = tf.while_loop(
                lambda m, _: m < n, lambda m, z: (m + 1, z + x), (0, y)
            )
            return n + 1, z

        return [tf.while_loop(lambda n, _: n < 3, outer, (0, x))[1]]

    assert_same_as_alone(leaf_of(nested, SCALAR), tf.constant([1.0, 2.0, 4.0]))


def test_gradients_of_lists_with_an_unknown_dimension():
    def gradient(x):
        last, *_ = tf.keras.backend.rnn(
            lambda x, states: (x * states[0], [x * states[0]]), x, [tf.ones([1, 2])]
        )
        return tf.gradients(last, x)

    leaf = leaf_of(tf.function(gradient), tf.TensorSpec([1, None, 2], tf.float32))
    x = tf.random.stateless_uniform([3, 1, 5, 2], [1, 2])
    assert_same_as_alone(leaf, x)


def test_tensorflows_own_conversions_are_back_afterwards():
    registry = pfor._pfor_converter_registry
    before = dict(registry), pfor._stack_tensor_list_shape, pfor._stack
    with vectorized_loops.converted():
        assert dict(registry) != before[0]
    with pytest.raises(KeyError), vectorized_loops.converted():
        raise KeyError("while tracing")
    assert (dict(registry), pfor._stack_tensor_list_shape, pfor._stack) == before


def test_what_all_clients_share_is_repeated():
    def constants(x):
        return [x, tf.constant(3.0), tf.constant(["a", "b"]), tf.zeros([2, 0])]

    x = tf.constant([1.0, 2.0])
    _, *found = vectorized(leaf_of(constants, SCALAR), x, stacked=[True])(x)
    expected = [[3.0, 3.0], [[b"a", b"b"]] * 2, np.zeros([2, 2, 0])]
    for repeated, value in zip(found, expected, strict=True):
        np.testing.assert_array_equal(repeated, value)


LAYERS = {
    "lstm": lambda: tf_keras.layers.LSTM(3),
    "gru": lambda: tf_keras.layers.GRU(3),
    "simple_rnn": lambda: tf_keras.layers.SimpleRNN(3),
    "both_ways": lambda: tf_keras.layers.Bidirectional(tf_keras.layers.LSTM(3)),
    "two": lambda: tf_keras.Sequential(
        [tf_keras.layers.GRU(3, return_sequences=True), tf_keras.layers.GRU(2)]
    ),
    "cells": lambda: tf_keras.layers.RNN(tf_keras.layers.LSTMCell(3)),
    "unrolled": lambda: tf_keras.layers.LSTM(3, unroll=True),
    "ours": lambda: layers.LSTM(3),
}


CASES = [("lstm", False)] + [
    pytest.param(layer, mask_zero, marks=pytest.mark.slow)
    for layer in LAYERS
    for mask_zero in (False, True)
    # Our layers support no masks.
    if (layer, mask_zero) not in (("lstm", False), ("ours", True))
]


@pytest.mark.parametrize(("layer", "mask_zero"), CASES)
def test_recurrent_keras_layers_train_to_the_same_and_are_vectorized(layer, mask_zero):
    """Clients of one to three batches, the last of which is smaller."""
    rng = np.random.default_rng(0)
    data = [
        tf.data.Dataset.from_tensor_slices(
            (
                rng.integers(0, 6, (size, 4)).astype(np.int32),
                rng.integers(0, 2, size).astype(np.int32),
            )
        ).batch(2)
        for size in (5, 2, 3, 5)
    ]

    def model_fn():
        tf_keras.utils.set_random_seed(0)
        model = tf_keras.Sequential(
            [
                tf_keras.layers.Embedding(6, 2, mask_zero=mask_zero, input_length=4),
                LAYERS[layer](),
                tf_keras.layers.Dense(2),
            ]
        )
        model.build([None, 4])
        return tff.learning.models.from_keras_model(
            model,
            tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=data[0].element_spec,
        )

    process = tff.learning.algorithms.build_weighted_fed_avg(
        model_fn, tff.learning.optimizers.build_sgdm(1.0)
    )
    initial = equivalence.call(equivalence.in_process(), process.initialize)

    def trained(batch_clients):
        context = equivalence.in_process(batch_clients=batch_clients)
        state = initial
        for _ in range(2):
            state = equivalence.call(context, process.next, state, data).state
        return process.get_model_weights(state).trainable, context.describe(
            process.next
        )

    together, description = trained(True)
    alone, _ = trained(False)
    assert "vectorized: 1 chunk of up to 4 clients" in description
    before = process.get_model_weights(initial).trainable
    for found, expected, first in zip(together, alone, before, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        assert np.abs(expected - first).max() > 1e-4


def _element_shape(make_list):
    """The shape of elements of a list to which a client's value was written, and it."""

    def shape(x):
        items = make_list(x)
        return [
            tf.raw_ops.TensorListElementShape(input_handle=items, shape_type=tf.int32)
        ]

    return leaf_of(shape, tf.TensorSpec([2], tf.float32))


@pytest.mark.parametrize("element_shape", [-1, [-1], [2]])
def test_elements_have_the_shape_of_one_client_or_none(element_shape):
    def make_list(x):
        items = tf.raw_ops.EmptyTensorList(
            element_shape=element_shape, max_num_elements=1, element_dtype=tf.float32
        )
        return tf.raw_ops.TensorListPushBack(input_handle=items, tensor=x)

    assert_same_as_alone(_element_shape(make_list), tf.ones([3, 2]))


def test_lists_that_are_concatenated_may_be_empty_and_are_not_vectorized():
    def concatenated(x):
        array = tf.TensorArray(tf.float32, 1, element_shape=[2])
        return [array.write(0, x).concat()]

    leaf = leaf_of(concatenated, tf.TensorSpec([2], tf.float32))
    assert "TensorListConcatV2" in vectorization_faults.find(leaf.graph_def.node)
