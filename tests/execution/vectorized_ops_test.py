"""Vectorized ops: the same as for each client alone, whatever the values."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor

from tests.testing.leaves import leaf_of
from tff_algos.execution import chunk_functions, tracing, vectorized_loops
from tff_algos.execution.vectorization import NotVectorizableError


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


@pytest.mark.parametrize(
    ("size", "begins"),
    [([2], [[0], [3], [1]]), ([-1], [[2], [2], [2]]), ([5], [[0], [0], [0]])],
)
def test_slices_may_begin_elsewhere_for_each_client(size, begins):
    leaf = leaf_of(
        lambda x, begin: [tf.slice(x, begin, size)],
        tf.TensorSpec([5], tf.float32),
        tf.TensorSpec([1], tf.int32),
    )
    x = tf.random.stateless_uniform([3, 5], [1, 2])
    assert_same_as_alone(leaf, x, tf.constant(begins))


@pytest.mark.parametrize(
    ("size", "begins"), [([-1], [[0], [1]]), ([2], [[0], [4]]), ([2], [[-1], [0]])]
)
def test_slices_that_differ_in_size_or_are_out_of_range_are_errors(size, begins):
    leaf = leaf_of(
        lambda x, begin: [tf.slice(x, begin, size)],
        tf.TensorSpec([5], tf.float32),
        tf.TensorSpec([1], tf.int32),
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
        together(leaf, tf.ones([2, 5]), tf.constant(begins))


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


IMAGES = tf.TensorSpec([None, 4, 5, 2], tf.float32)
OF_IMAGES = {
    "local response normalization": lambda x: tf.nn.lrn(x, depth_radius=1, bias=1.0),
    "bilinear resizing": lambda x: tf.image.resize(x, [7, 3]),
    "nearest resizing": lambda x: tf.image.resize(x, [8, 10], method="nearest"),
    "bicubic resizing": lambda x: tf.raw_ops.ResizeBicubic(images=x, size=[6, 6]),
    "patches": lambda x: tf.image.extract_patches(
        x, [1, 2, 2, 1], [1, 1, 2, 1], [1, 1, 1, 1], "SAME"
    ),
    "reflected padding": lambda x: tf.pad(
        x, [[0, 0], [1, 2], [3, 0], [0, 0]], mode="REFLECT"
    ),
    "symmetric padding": lambda x: tf.pad(
        x, [[1, 1], [1, 2], [3, 0], [0, 1]], mode="SYMMETRIC"
    ),
}
WITHOUT_GRADIENT = {"bicubic resizing"}  # Only its own op has one.


@pytest.mark.parametrize("num_clients", [1, 3])
@pytest.mark.parametrize("name", OF_IMAGES)
def test_images_are_each_clients_own(name, num_clients):
    def apply(x):
        y = OF_IMAGES[name](x)
        if name in WITHOUT_GRADIENT:
            return [y]
        return [y, *tf.gradients(tf.reduce_sum(y**3), x)]

    x = tf.random.stateless_uniform([num_clients, 2, 4, 5, 2], [1, 2])
    assert_same_as_alone(leaf_of(apply, IMAGES), x)


def test_mirrored_padding_of_too_many_axes_is_not_vectorized():
    leaf = leaf_of(
        lambda x: [tf.pad(x, [[0, 0]] * 4 + [[1, 1]], mode="REFLECT")],
        tf.TensorSpec([1, 1, 1, 1, 3], tf.float32),
    )
    with pytest.raises(NotVectorizableError, match="mirrored padding"):
        together(leaf, tf.ones([2, 1, 1, 1, 1, 3]))


@pytest.mark.parametrize("num_clients", [1, 3])
def test_norms_are_of_one_client_and_have_gradients(num_clients):
    def norms(x):
        half = tf.nn.l2_loss(x)
        norm = tf.math.reduce_euclidean_norm(x, axis=[-1], keepdims=True)
        return [half, norm, *tf.gradients(half + tf.reduce_sum(norm**3), x)]

    leaf = leaf_of(norms, tf.TensorSpec([None, 3], tf.float32))
    x = tf.random.stateless_uniform([num_clients, 4, 3], [1, 2])
    assert_same_as_alone(leaf, x)


@pytest.mark.parametrize("num_clients", [1, 3])
def test_labels_are_looked_for_among_a_clients_predictions(num_clients):
    leaf = leaf_of(
        lambda x, y: [tf.math.in_top_k(y, x, 2)],
        tf.TensorSpec([None, 5], tf.float32),
        tf.TensorSpec([None], tf.int32),
    )
    x = tf.random.stateless_uniform([num_clients, 6, 5], [1, 2])
    y = tf.random.stateless_uniform([num_clients, 6], [3, 4], 0, 5, tf.int32)
    assert_same_as_alone(leaf, x, y)


SCATTERS = {
    "add": tf.tensor_scatter_nd_add,
    "max": tf.tensor_scatter_nd_max,
    "min": tf.tensor_scatter_nd_min,
    "sub": tf.tensor_scatter_nd_sub,
    "new": lambda x, ids, rows: tf.scatter_nd(ids, rows, tf.shape(x, ids.dtype)),
}


@pytest.mark.parametrize("num_clients", [1, 3])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("kind", SCATTERS)
def test_elements_at_indices_are_each_clients_own(kind, dtype, num_clients):
    def scatter(x, ids):
        rows = x[:3] ** 2
        y = SCATTERS[kind](x, ids, rows)
        return [y, *tf.gradients(tf.reduce_sum(y**3), x)]

    x = tf.random.stateless_uniform([num_clients, 4, 2], [1, 2])
    ids = tf.random.stateless_uniform([num_clients, 3, 1], [3, 4], 0, 2, dtype)
    specs = [tf.TensorSpec([4, 2], tf.float32), tf.TensorSpec([3, 1], dtype)]
    assert_same_as_alone(leaf_of(scatter, *specs), x, ids)


def test_gradients_of_elements_that_are_read_are_each_clients_own():
    def gradient(x, ids):
        read = tf.gather_nd(x, ids)
        return tf.gradients(tf.reduce_sum(read**2), x)

    specs = [tf.TensorSpec([4, 2], tf.float32), tf.TensorSpec([None, 2], tf.int32)]
    x = tf.random.stateless_uniform([3, 4, 2], [1, 2])
    ids = tf.constant([[[0, 1], [0, 1]], [[3, 0], [2, 1]], [[2, 0], [1, 1]]])
    assert_same_as_alone(leaf_of(gradient, *specs), x, ids)


def test_an_index_out_of_range_is_an_error():
    leaf = leaf_of(
        lambda ids: [tf.scatter_nd(ids, tf.ones([1]), [2])],
        tf.TensorSpec([1, 1], tf.int32),
    )
    found = together(leaf, tf.constant([[[0]], [[1]]]))[0]
    np.testing.assert_array_equal(found, [[1, 0], [0, 1]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not index"):
        together(leaf, tf.constant([[[2]], [[1]]]))


def test_others_vectorized_maps_are_as_before():
    registry = dict(pfor._pfor_converter_registry)
    with vectorized_loops.converted():
        assert set(pfor._pfor_converter_registry) > set(registry)
    assert pfor._pfor_converter_registry == registry
