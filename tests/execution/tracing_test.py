"""Traced functions: what they compute and what they hold."""

import gc
import weakref

import tensorflow as tf

from tff_algos.execution import tracing

SCALAR = tf.TensorSpec([], tf.float32)


def test_a_graph_goes_with_its_function():
    traced = tracing.concrete_function(lambda x: [x + 1], [SCALAR])
    graph = weakref.ref(traced.graph)
    gc.disable()
    try:
        del traced
        assert graph() is None
    finally:
        gc.enable()


def test_a_traced_function_keeps_what_it_captures():
    variable = tf.Variable(5.0)
    traced = tracing.trace(lambda x: [x + variable], [SCALAR])
    variable.assign(7.0)
    assert float(traced(tf.constant(1.0))[0]) == 8.0
