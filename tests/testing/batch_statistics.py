"""A tiny network with batch normalization, and its moving statistics by client."""

import functools

import numpy as np
import tensorflow as tf

from tasks.models import normalized

SHAPE, NUM_CLASSES, BATCH_SIZE = (2, 2, 1), 3, 4
SIZES = (4, 8, 12)
N = len(SIZES)
# So small that weights stay as they are: statistics are then the batches' alone.
RATE = 1e-12


@functools.cache
def model():
    return normalized.build_tiny_nn(SHAPE, NUM_CLASSES, seed=0, norm="batch")


def examples(client, size):
    rng = np.random.default_rng(client)
    x = rng.normal(loc=client, size=(size, *SHAPE)).astype(np.float32)
    return x, rng.integers(0, NUM_CLASSES, size).astype(np.int32)


def datasets(sizes=SIZES):
    return [
        tf.data.Dataset.from_tensor_slices(examples(client, size)).batch(BATCH_SIZE)
        for client, size in enumerate(sizes)
    ]


def statistics_after(client, size):
    """A client's moving statistics after its batches, at the initial weights."""
    trainable, non_trainable = (
        tuple(map(tf.constant, part)) for part in model().initial_weights
    )
    x, _ = examples(client, size)
    for start in range(0, size, BATCH_SIZE):
        batch = tf.constant(x[start : start + BATCH_SIZE])
        weights = (trainable, non_trainable)
        mode = model().mode(weights, batch)
        non_trainable = model().apply_blocks(weights, batch, mode).non_trainable
    return [tensor.numpy() for tensor in non_trainable]
