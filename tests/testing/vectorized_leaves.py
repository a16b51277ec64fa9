"""Leaves vectorized over clients, compared with each client alone."""

import numpy as np
import tensorflow as tf

from tff_algos.execution import chunk_functions, tracing


def vectorized(leaf, *tensors, stacked):
    """Returns the traced function, of as many clients as the first tensor has."""

    def run(*tensors):
        clients = tf.shape(tensors[0])[0]
        return chunk_functions.map_clients(leaf, clients, tensors, stacked)

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
    return tracing.concrete_function(run, specs)


def assert_same_as_alone(leaf, *tensors):
    """Asserts that all clients together get what each gets alone."""
    together = vectorized(leaf, *tensors, stacked=[True] * len(tensors))(*tensors)
    run = tf.function(lambda *tensors: leaf(tensors))
    outputs = [run(*client) for client in zip(*tensors, strict=True)]
    alone = [np.stack(same) for same in zip(*outputs, strict=True)]
    for found, expected in zip(together, alone, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
