"""Loops of a graph show which of their values change."""

import numpy as np
import tensorflow as tf

from tests.testing.leaves import leaf_of
from tff_algos.execution import graph_loops


def loops_of(function, *specs):
    """Returns the loops of a function, inner ones first."""
    found = []
    leaf = leaf_of(function, *specs)
    graph_loops.rewrite_loops(leaf.graph_def, found.append)
    return found


@tf.function
def sums(x, w):
    with tf.GradientTape() as tape:
        tape.watch(w)
        total = tf.zeros([1, 2])
        for _ in tf.range(3):
            total = tf.matmul(total, w) + x
        loss = tf.reduce_sum(total**2)
    return [tape.gradient(loss, w)]


SPECS = (tf.TensorSpec([2]), tf.TensorSpec([2, 2]))


def test_a_loop_knows_the_values_that_it_leaves_unchanged_and_their_shapes():
    forward = loops_of(sums, *SPECS)[0]
    kept = [forward.invariant(name) for name in forward.names]
    shapes = {str(forward.shape(index)) for index in kept if index is not None}
    assert {"(2,)", "(2, 2)"} <= shapes
    assert None in kept


def test_a_gradient_knows_the_matrix_before_its_loop_and_that_the_saved_state_changes():
    _, backward = loops_of(sums, *SPECS)
    (product,) = [n for n in backward.body.node_def if n.attr["transpose_b"].b]
    matrix = backward.constant_source(product.input[1])
    assert matrix.shape == [2, 2]
    assert matrix.tensor in backward.node.input
    (pop,) = [n for n in backward.body.node_def if n.op == "TensorListPopBack"]
    assert backward.constant_source(f"{pop.name}:tensor:0") is None


def test_an_unchanged_loop_has_no_changed_functions_and_a_new_argument_changes_both():
    loop = loops_of(sums, *SPECS)[0]
    assert loop.changed_functions() == []
    one = loop.constant("one", np.array(1, np.int32))
    name = loop.add_argument(one, tf.int32.as_datatype_enum, tf.TensorShape([]))
    assert loop.invariant(name) == len(loop.names) - 1
    body, condition = loop.changed_functions()
    assert body.signature.input_arg[-1].name == name
    assert condition.signature.input_arg[-1].name == name
    assert loop.node.attr["body"].func.name == body.signature.name
