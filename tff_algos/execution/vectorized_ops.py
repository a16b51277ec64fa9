"""Conversions of ops that `tf.vectorized_map` lacks, or gets wrong for some values.

Where there is one client, TensorFlow takes the clients' axis for one of those that
`tf.squeeze` without axes removes. It numbers the segments of all clients consecutively,
so that a client's id that is out of range would be the next client's. It pads with
zeros whatever the value, and a roll along a negative axis would be one along another
axis. Slices that begin elsewhere for each client are all as long as the longest, with
zeros on a GPU.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor

# TensorFlow has no kernel for more axes.
_MAX_MIRROR_PAD_RANK = 5


def _convert_squeeze(pfor_input: pfor._PforInput) -> pfor.WrappedTensor:
    """Converts the removal of axes: of those of one client, if none are named."""
    if pfor_input.get_attr("squeeze_dims"):
        return pfor._convert_squeeze(pfor_input)
    tensor = pfor_input.stacked_input(0)
    sizes = tf.shape(tensor)
    kept = tf.boolean_mask(sizes[1:], sizes[1:] != 1)
    return pfor.wrap(tf.reshape(tensor, tf.concat([sizes[:1], kept], axis=0)))


_SEGMENTS = {
    "UnsortedSegmentMax": tf.math.unsorted_segment_max,
    "UnsortedSegmentMin": tf.math.unsorted_segment_min,
    "UnsortedSegmentProd": tf.math.unsorted_segment_prod,
    "UnsortedSegmentSum": tf.math.unsorted_segment_sum,
}


def _convert_segments(pfor_input: pfor._PforInput) -> pfor.WrappedTensor:
    """Converts the reduction of segments; ids out of range stay out of range."""
    pfor_input.stack_inputs([0, 1])
    ids = tf.cast(pfor_input.stacked_input(1), tf.int64)
    count = tf.cast(pfor_input.unstacked_input(2), tf.int64)
    clients = tf.cast(pfor_input.pfor.loop_len_vector, tf.int64)
    total = clients[0] * count
    ones = tf.ones([tf.rank(ids) - 1], tf.int64)
    first = tf.reshape(count * tf.range(clients[0]), tf.concat([clients, ones], axis=0))
    # TensorFlow ignores negative ids; ids that are too large are an error on a CPU, and
    # ignored on a GPU.
    outside = tf.where(ids < 0, ids, total)
    own = tf.where((ids >= 0) & (ids < count), first + ids, outside)
    reduced = _SEGMENTS[pfor_input.op_type](pfor_input.stacked_input(0), own, total)
    shape = tf.concat([[clients[0], count], tf.shape(reduced, tf.int64)[1:]], axis=0)
    return pfor.wrap(tf.reshape(reduced, shape))


def _convert_pad(pfor_input: pfor._PforInput) -> pfor.WrappedTensor:
    """Converts padding with a value that all clients share."""
    pfor_input.stack_inputs([0])
    tensor = pfor_input.stacked_input(0)
    paddings = _none_for_clients(pfor_input.unstacked_input(1))
    value = pfor_input.unstacked_input(2)
    return pfor.wrap(
        tf.raw_ops.PadV2(input=tensor, paddings=paddings, constant_values=value)
    )


def _convert_on_batches(
    batches: Sequence[int], pfor_input: pfor._PforInput
) -> list[pfor.WrappedTensor]:
    """Converts an op that does the same to every example, as one on all of them."""
    return pfor._convert_flatten_batch(pfor_input, None, dims=batches)


def _convert_euclidean_norm(pfor_input: pfor._PforInput) -> pfor.WrappedTensor:
    """Converts the norm along some axes."""
    return pfor._convert_reduction(pfor_input, None, tf.math.reduce_euclidean_norm)


def _none_for_clients(paddings: tf.Tensor) -> tf.Tensor:
    return tf.pad(paddings, [[1, 0], [0, 0]])


def _convert_mirror_pad(
    op: Callable[..., tf.Tensor], pfor_input: pfor._PforInput
) -> pfor.WrappedTensor:
    """Converts padding with a tensor's own elements, or its gradient."""
    tensor = pfor_input.stacked_input(0)
    if tensor.shape.rank is None or tensor.shape.rank > _MAX_MIRROR_PAD_RANK:
        raise ValueError(f"mirrored padding of shape {tensor.shape[1:]}")
    padded = op(
        input=tensor,
        paddings=_none_for_clients(pfor_input.unstacked_input(1)),
        mode=pfor_input.get_attr("mode").decode(),
    )
    return pfor.wrap(padded)


def _convert_l2_loss(pfor_input: pfor._PforInput) -> pfor.WrappedTensor:
    """Converts half of the sum of squares."""
    tensor = pfor_input.stacked_input(0)
    flat = tf.reshape(tensor, [pfor_input.pfor.loop_len_vector[0], -1])
    return pfor.wrap(tf.reduce_sum(flat * flat, axis=1) / 2)


def _convert_scatter_into(
    op: Callable[..., tf.Tensor], pfor_input: pfor._PforInput
) -> pfor.WrappedTensor:
    """Converts adding to, or another change of, a tensor's elements at indices."""
    pfor_input.stack_inputs([0, 1, 2])
    tensor, indices, updates = map(pfor_input.stacked_input, range(3))
    return pfor.wrap(op(tensor, _own_elements(indices), updates))


def _convert_scatter(pfor_input: pfor._PforInput) -> pfor.WrappedTensor:
    """Converts `tf.scatter_nd`, which is also the gradient of `tf.gather_nd`."""
    pfor_input.stack_inputs([0, 1])
    indices, updates = map(pfor_input.stacked_input, range(2))
    shape = pfor_input.unstacked_input(2)
    clients = tf.cast(pfor_input.pfor.loop_len_vector, shape.dtype)
    shape = tf.concat([clients, shape], axis=0)
    return pfor.wrap(tf.scatter_nd(_own_elements(indices), updates, shape))


def _own_elements(indices: tf.Tensor) -> tf.Tensor:
    """Prepends the client to the indices of elements of each client's tensor."""
    sizes = tf.shape(indices)
    clients = tf.range(tf.cast(sizes[0], indices.dtype), dtype=indices.dtype)
    clients = tf.reshape(clients, tf.concat([sizes[:1], tf.ones_like(sizes[1:])], 0))
    clients = tf.broadcast_to(clients, tf.concat([sizes[:-1], [1]], 0))
    return tf.concat([clients, indices], axis=-1)


def _convert_roll(pfor_input: pfor._PforInput) -> pfor.WrappedTensor:
    """Converts a roll by as many elements for all clients."""
    pfor_input.stack_inputs([0])
    axis = pfor_input.unstacked_input(2)
    return pfor.wrap(
        tf.roll(
            pfor_input.stacked_input(0),
            pfor_input.unstacked_input(1),
            tf.where(axis < 0, axis, axis + 1),
        )
    )


def _convert_slice(pfor_input: pfor._PforInput) -> pfor.WrappedTensor:
    """Converts a slice; if clients' begin elsewhere, all must have the same size."""
    converted = pfor._convert_slice(pfor_input)
    begin, is_stacked, _ = pfor_input.input(1)
    if not is_stacked:
        return converted
    sizes = tf.shape(pfor_input.stacked_input(0), begin.dtype)[1:]
    size = pfor_input.unstacked_input(2)
    longest = tf.reduce_max(sizes - begin, axis=0)
    ends = begin + tf.where(size < 0, longest, size)
    fits = tf.reduce_all((begin >= 0) & (ends <= sizes))
    message = "slices of clients differ in size, or are out of range"
    with tf.control_dependencies([tf.debugging.Assert(fits, [message])]):
        return pfor.wrap(tf.identity(converted.t))


# For ops on batches, whose examples of all clients make one: which inputs are batches.
_ON_BATCHES = {
    "ExtractImagePatches": [0],
    "InTopK": [0, 1],
    "InTopKV2": [0, 1],
    "LRN": [0],
    "LRNGrad": [0, 1, 2],
    "ResizeBicubic": [0],
    "ResizeBilinear": [0],
    "ResizeBilinearGrad": [0, 1],
    "ResizeNearestNeighbor": [0],
    "ResizeNearestNeighborGrad": [0],
}
_SCATTERS = {
    "TensorScatterAdd": tf.tensor_scatter_nd_add,
    "TensorScatterMax": tf.tensor_scatter_nd_max,
    "TensorScatterMin": tf.tensor_scatter_nd_min,
    "TensorScatterSub": tf.tensor_scatter_nd_sub,
}
_MIRROR_PADS = {
    "MirrorPad": tf.raw_ops.MirrorPad,
    "MirrorPadGrad": tf.raw_ops.MirrorPadGrad,
}


def _for_each(
    convert: Callable[..., pfor.WrappedTensor | list[pfor.WrappedTensor]],
    arguments: Mapping[str, Any],
) -> dict[str, Callable[[pfor._PforInput], Any]]:
    """Returns a converter of every op, which is called with the op's argument first."""
    return {op: functools.partial(convert, each) for op, each in arguments.items()}


CONVERTERS = {
    "EuclideanNorm": _convert_euclidean_norm,
    "L2Loss": _convert_l2_loss,
    "PadV2": _convert_pad,
    "Roll": _convert_roll,
    "ScatterNd": _convert_scatter,
    "Slice": _convert_slice,
    "Squeeze": _convert_squeeze,
    **_for_each(_convert_on_batches, _ON_BATCHES),
    **_for_each(_convert_mirror_pad, _MIRROR_PADS),
    **_for_each(_convert_scatter_into, _SCATTERS),
    **dict.fromkeys(_SEGMENTS, _convert_segments),
}
