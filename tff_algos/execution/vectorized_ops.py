"""Conversions of ops that `tf.vectorized_map` gets wrong for some values of a client.

Where there is one client, TensorFlow takes the clients' axis for one of those that
`tf.squeeze` without axes removes. And it numbers the segments of all clients
consecutively, so that a client's id that is out of range would be the next client's. It pads with zeros
whatever the value, and a roll along a negative axis would be one along another axis.
"""

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor


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
    paddings = tf.pad(pfor_input.unstacked_input(1), [[1, 0], [0, 0]])
    value = pfor_input.unstacked_input(2)
    return pfor.wrap(
        tf.raw_ops.PadV2(input=tensor, paddings=paddings, constant_values=value)
    )


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


CONVERTERS = {
    "PadV2": _convert_pad,
    "Roll": _convert_roll,
    "Squeeze": _convert_squeeze,
    **dict.fromkeys(_SEGMENTS, _convert_segments),
}
