"""Vectorized ops: the same as for each client alone, whatever the values."""

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.leaves import leaf_of
from tff_algos.execution import chunk_functions, tracing


def together(leaf, *tensors):
    """Returns the outputs of a leaf, vectorized over any number of clients."""

    def run(*tensors):
        clients = tf.shape(tensors[0])[0]
        stacked = [True] * len(tensors)
        return chunk_functions.map_clients(leaf, clients, tensors, stacked)

    specs = [tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in tensors]
    return tracing.concrete_function(run, specs)(*tensors)


def assert_same_as_alone(leaf, *tensors):
    run = tf.function(lambda *tensors: leaf(tensors))
    alone = [run(*client) for client in zip(*tensors, strict=True)]
    for found, *expected in zip(together(leaf, *tensors), *alone, strict=True):
        np.testing.assert_allclose(found, np.stack(expected), rtol=1e-6)


@pytest.mark.parametrize("num_clients", [1, 3])
def test_axes_of_one_element_are_removed_but_not_the_clients(num_clients):
    def mean(x):
        kept = tf.squeeze(x)
        return [tf.reduce_mean(kept), kept, tf.squeeze(x, [1])]

    leaf = leaf_of(mean, tf.TensorSpec([None, 1], tf.float32))
    x = tf.random.stateless_uniform([num_clients, 4, 1], [1, 2])
    assert_same_as_alone(leaf, x)


@pytest.mark.parametrize("num_clients", [1, 3])
def test_padding_is_with_its_value_and_has_a_gradient(num_clients):
    def pad(x):
        padded = tf.pad(x, [[0, 0], [2, 1]], constant_values=-np.inf)
        greatest = tf.reduce_max(padded[:, :4], axis=1)
        return [padded, *tf.gradients(tf.reduce_sum(greatest**2), x)]

    leaf = leaf_of(pad, tf.TensorSpec([None, 3], tf.float32))
    x = tf.random.stateless_uniform([num_clients, 4, 3], [1, 2])
    assert_same_as_alone(leaf, x)


@pytest.mark.parametrize("num_clients", [1, 3])
@pytest.mark.parametrize(
    ("shift", "axis"), [(1, -1), (2, 0), ([1, -2], [0, -1]), ([1, 1], [1, 1])]
)
def test_a_roll_is_along_the_axes_of_a_client(shift, axis, num_clients):
    leaf = leaf_of(
        lambda x: [tf.roll(x, shift, axis)], tf.TensorSpec([None, 3], tf.float32)
    )
    x = tf.random.stateless_uniform([num_clients, 4, 3], [1, 2])
    assert_same_as_alone(leaf, x)


REDUCTIONS = {
    "max": tf.math.unsorted_segment_max,
    "min": tf.math.unsorted_segment_min,
    "prod": tf.math.unsorted_segment_prod,
    "sum": tf.math.unsorted_segment_sum,
}


@pytest.mark.parametrize("num_clients", [1, 3])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_segments_are_each_clients_own(reduction, dtype, num_clients):
    def reduce(x, ids):
        of_rows = REDUCTIONS[reduction](x, ids[:, 0], 3)
        return [of_rows, REDUCTIONS[reduction](x, ids, tf.size(ids) // 2)]

    specs = [tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None, 2], dtype)]
    x = tf.random.stateless_uniform([num_clients, 5, 2], [1, 2])
    # Negative ids are ignored.
    ids = tf.random.stateless_uniform(
        [num_clients, 5, 2], [3, 4], minval=-1, maxval=3, dtype=dtype
    )
    assert_same_as_alone(leaf_of(reduce, *specs), x, ids)


def test_a_segment_out_of_range_is_an_error():
    def reduce(ids):
        return [tf.math.unsorted_segment_sum(tf.ones([2]), ids, 2)]

    leaf = leaf_of(reduce, tf.TensorSpec([2], tf.int32))
    np.testing.assert_array_equal(
        together(leaf, tf.constant([[0, 0], [1, -1], [1, 0]]))[0],
        [[2, 0], [0, 1], [1, 1]],
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="out of range"):
        together(leaf, tf.constant([[0, 2], [1, 1], [1, 0]]))


def test_gradients_of_rows_that_are_read_are_each_clients_own():
    def gradient(x, ids):
        rows = tf.gather(x, ids)
        return [tf.convert_to_tensor(tf.gradients(tf.reduce_sum(rows**2), x)[0])]

    specs = [tf.TensorSpec([4, 2], tf.float32), tf.TensorSpec([None], tf.int32)]
    x = tf.random.stateless_uniform([3, 4, 2], [1, 2])
    ids = tf.constant([[0, 0, 3], [3, 2, 1], [2, 2, 2]])
    assert_same_as_alone(leaf_of(gradient, *specs), x, ids)
