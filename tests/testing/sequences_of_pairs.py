"""A sequence of pairs with named elements."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

PAIRS = tff.SequenceType(
    collections.OrderedDict(x=tff.TensorType(np.float32, [2]), y=np.str_)
)


def pairs(count):
    return tf.data.Dataset.from_tensor_slices(
        collections.OrderedDict(
            x=np.arange(2.0 * count, dtype=np.float32).reshape([count, 2]),
            y=np.array([f"n{i}" for i in range(count)], np.str_),
        )
    )
