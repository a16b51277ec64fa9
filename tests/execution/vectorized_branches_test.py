"""Vectorized branches: the same as for each client alone."""

import pytest
import tensorflow as tf

from tests.testing.leaves import leaf_of
from tests.testing.vectorized_leaves import assert_same_as_alone, vectorized

SCALAR = tf.TensorSpec([], tf.float32)

CLIENTS = {
    "first": [2.0, 3.0, 4.0],
    "second": [-2.0, -3.0, -4.0],
    "either": [2.0, -3.0, 4.0],
    "one": [2.0],
}


def _double_or_nothing(x):
    return tf.cond(x > 0, lambda: (2 * x, 1.0), lambda: (tf.zeros_like(x), x))


@pytest.mark.parametrize("values", CLIENTS.values(), ids=CLIENTS)
def test_every_client_takes_its_own_branch(values):
    leaf = leaf_of(lambda x: [*_double_or_nothing(x)], SCALAR)
    assert_same_as_alone(leaf, tf.constant(values))


@pytest.mark.parametrize("values", CLIENTS.values(), ids=CLIENTS)
def test_a_branch_within_a_branch(values):
    def nested(x):
        return [tf.cond(x > -3, lambda: _double_or_nothing(x)[0], lambda: x - 1)]

    assert_same_as_alone(leaf_of(nested, SCALAR), tf.constant(values))


@pytest.mark.parametrize("values", CLIENTS.values(), ids=CLIENTS)
def test_a_branch_with_a_loop(values):
    def power(x):
        def loop():
            return tf.while_loop(lambda y: y < 10, lambda y: [y * x], [x])[0]

        return [tf.cond(x > 0, loop, lambda: x)]

    assert_same_as_alone(leaf_of(power, SCALAR), tf.constant(values))


def test_a_condition_may_be_a_number():
    @tf.function(input_signature=[SCALAR])
    def double(x):
        return 2 * x

    @tf.function(input_signature=[SCALAR])
    def negative(x):
        return -x

    def choose(x):
        return tf.raw_ops.StatelessIf(
            cond=tf.cast(x > 0, tf.int32),
            input=[x],
            Tout=[tf.float32],
            then_branch=double.get_concrete_function(),
            else_branch=negative.get_concrete_function(),
        )

    assert_same_as_alone(leaf_of(choose, SCALAR), tf.constant([2.0, -3.0, 4.0]))


def test_no_clients():
    leaf = leaf_of(lambda x: [*_double_or_nothing(x)], SCALAR)
    nobody = tf.zeros([0])
    doubled, _ = vectorized(leaf, nobody, stacked=[True])(nobody)
    assert doubled.shape == [0]


def test_clients_are_sorted_only_where_they_differ():
    leaf = leaf_of(lambda x: [*_double_or_nothing(x)], SCALAR)
    x = tf.constant([1.0, 2.0])
    function = vectorized(leaf, x, stacked=[True])
    copies = {"DynamicPartition", "DynamicStitch"}
    assert not copies & {op.type for op in function.graph.get_operations()}
    library = function.graph.as_graph_def().library.function
    assert copies < {node.op for each in library for node in each.node_def}
