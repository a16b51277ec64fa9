"""Random ops: what TensorFlow says of them, and what public functions make."""

import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tff_algos.random_ops import RANDOM_OPS


@pytest.mark.parametrize("name", sorted(RANDOM_OPS))
def test_it_is_an_op_with_a_state(name):
    definition = op_def_registry.get(name)
    assert definition is not None
    assert definition.is_stateful


@pytest.mark.parametrize(
    ("draw", "is_listed"),
    [
        (lambda: tf.random.uniform([2]), True),
        (lambda: tf.random.uniform([2], maxval=5, dtype=tf.int32), True),
        (lambda: tf.random.normal([2]), True),
        (lambda: tf.random.truncated_normal([2]), True),
        (lambda: tf.random.gamma([2], 1.0), True),
        (lambda: tf.random.poisson([2], 1.0), True),
        (lambda: tf.random.shuffle([1, 2]), True),
        (lambda: tf.random.categorical([[0.0, 0.0]], 2), True),
        (lambda: tf.random.stateless_uniform([2], seed=[1, 2]), False),
        (lambda: tf.nn.dropout(tf.ones([2]), 0.5), True),
    ],
)
def test_a_public_function_makes_one(draw, is_listed):
    graph = tf.function(draw).get_concrete_function().graph
    drawn = {op.type for op in graph.get_operations()} & RANDOM_OPS
    assert bool(drawn) == is_listed
