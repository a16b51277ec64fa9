"""Products with elements of lists are computed outside of loops, to the same values."""

import numpy as np
import pytest
import tensorflow as tf

from tests.execution.loop_rewrites_test import assert_same, ops_in_loops, rewritten
from tests.testing.leaves import leaf_of
from tff_algos.execution import graph_contents, list_products, loop_rewrites

STEPS = tf.TensorSpec([None, 2, 3], tf.float64)
MATRIX = tf.TensorSpec([3, 3], tf.float64)
RNG = np.random.default_rng(0)
X, W, V = RNG.normal(size=[5, 2, 3]), *RNG.normal(size=[2, 3, 3])


def recurrence(x, w, v, order=lambda index: index, changed=lambda w: w):
    """The last state of a layer, of which `w` multiplies the inputs."""
    elements = tf.TensorArray(x.dtype, tf.shape(x)[0]).unstack(x)
    state = tf.ones([2, 3], x.dtype)
    for index in tf.range(tf.shape(x)[0]):
        state = tf.tanh(tf.matmul(elements.read(order(index)), w) + tf.matmul(state, v))
        w = changed(w)
    return state


def gradients_of(**kwargs):
    @tf.function
    def gradients(x, w, v):
        with tf.GradientTape() as tape:
            tape.watch([x, w, v])
            # The inputs have another part in the loss.
            loss = tf.reduce_sum(recurrence(x, w, v, **kwargs) ** 2) + tf.reduce_sum(x)
        return tape.gradient(loss, [x, w, v])

    return gradients


def both_ways(leaf):
    return rewritten(
        leaf,
        loop_rewrites.hoist_transposes,
        loop_rewrites.multiply_after_loops,
        list_products.multiply_elements_before_loops,
        list_products.multiply_elements_after_loops,
    )


def num_scattered(leaf) -> int:
    ops = [node.op for node in graph_contents.all_nodes(leaf.graph_def)]
    return ops.count("TensorListScatterV2")


def test_inputs_are_multiplied_before_the_loop():
    leaf = leaf_of(tf.function(lambda *a: [recurrence(*a)]), STEPS, MATRIX, MATRIX)
    before = rewritten(leaf, list_products.multiply_elements_before_loops)
    assert_same(leaf, before, X, W, V)
    assert len(ops_in_loops(leaf, "MatMul")) == 2
    assert len(ops_in_loops(before, "MatMul")) == 1


def test_a_matrix_that_changes_multiplies_in_the_loop():
    function = tf.function(lambda *a: [recurrence(*a, changed=lambda w: 0.5 * w)])
    leaf = leaf_of(function, STEPS, MATRIX, MATRIX)
    before = rewritten(leaf, list_products.multiply_elements_before_loops)
    assert_same(leaf, before, X, W, V)
    assert len(ops_in_loops(before, "MatMul")) == 2


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_gradients_of_inputs_are_multiplied_after_the_loop(steps):
    leaf = leaf_of(gradients_of(), STEPS, MATRIX, MATRIX)
    both = both_ways(leaf)
    assert_same(leaf, both, X[:steps], W, V)
    assert (num_scattered(leaf), num_scattered(both)) == (0, 1)


def test_elements_in_any_order_get_their_own_gradient():
    leaf = leaf_of(gradients_of(order=lambda index: 4 - index), STEPS, MATRIX, MATRIX)
    assert_same(leaf, both_ways(leaf), X, W, V)


def test_an_element_that_is_read_twice_gets_the_sum_of_its_gradients():
    leaf = leaf_of(gradients_of(order=lambda index: index % 2), STEPS, MATRIX, MATRIX)
    both = both_ways(leaf)
    assert_same(leaf, both, X, W, V)
    # Which indices differ is not known.
    assert num_scattered(both) == 0
