"""Layers as blocks: pure functions together with their initial weights.

Initial kernels are Glorot uniform, biases zero. Blocks of one model draw their weights
from one generator in the order of their creation, so the seed determines them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tasks.models import initializers, layers, normalization
from tff_algos.layers import group_norm
from tff_algos.models.block_model import Block, Tensors, chain, layer

Norm = Literal["batch", "group", "none"]

# As in Reddi et al., "Adaptive federated optimization", ICLR 2021
# (https://arxiv.org/abs/2003.00295), in place of batch normalization.
NUM_GROUPS = 2

FLATTEN = layer(layers.flatten)
MAX_POOL = layer(layers.max_pool2d)
RELU = layer(tf.nn.relu)


def dense(
    rng: np.random.Generator, size_in: int, size_out: int, dtype: type = np.float32
) -> Block:
    """Returns `[n, size_in] -> [n, size_out]`, with a bias; weights have the dtype."""
    kernel = initializers.glorot_uniform(rng, size_in, size_out).astype(dtype)
    return layer(layers.dense, kernel, initializers.zeros(size_out).astype(dtype))


def conv2d(
    rng: np.random.Generator,
    size: int,
    channels_in: int,
    channels_out: int,
    padding: Literal["SAME", "VALID"],
) -> Block:
    """Returns a convolution with a bias, stride 1 and filters of `size` squared."""
    filters = initializers.glorot_uniform(rng, size, size, channels_in, channels_out)
    function = functools.partial(layers.conv2d, padding=padding)
    return layer(function, filters, initializers.zeros(channels_out))


def conv2d_3x3(
    rng: np.random.Generator, channels_in: int, channels_out: int, strides: int = 1
) -> Block:
    """Returns a 3 x 3 convolution without a bias, see `layers.conv2d_3x3`."""
    filters = initializers.glorot_uniform(rng, 3, 3, channels_in, channels_out)
    return layer(functools.partial(layers.conv2d_3x3, strides=strides), filters)


def dropout(
    rate: float, salt: int, function: Callable[..., tf.Tensor] = layers.dropout
) -> Block:
    """Returns dropout, which is active if the mode has a seed.

    Args:
      rate: The dropout rate, in [0, 1).
      salt: A number that distinguishes the dropout layers of one model.
      function: `layers.dropout` or `layers.spatial_dropout`.
    """

    def apply(trainable, non_trainable, x, mode):
        del trainable, non_trainable  # Dropout has no weights.
        if mode.dropout_seed is None:
            return x, ()
        return function(x, rate, mode.dropout_seed, salt), ()

    return Block(apply=apply, has_dropout=True)


def dropout_seed(blocks: Sequence[Block]) -> Callable[[Tensors, Any], tf.Tensor]:
    """Returns the `dropout_seed_fn` of a model: a hash of some weights and the batch.

    The weights are the last ones, biases as a rule, of the first and of the last block
    that have any, because some algorithms train only one of the two in a step. Of a
    matrix, such as an embedding, the last column is taken.

    Args:
      blocks: The model's blocks; at least one has trainable weights.
    """
    ends = np.cumsum([len(block.trainable) for block in blocks if block.trainable])
    # The last is counted from the end, before which a block may be inserted.
    chosen = (ends[0] - 1, -1) if len(ends) > 1 else (-1,)

    def seed(trainable: Tensors, x: Any) -> tf.Tensor:
        few = [_few_elements(trainable[index]) for index in chosen]
        return layers.fingerprint(tf.concat(few, axis=0), x)

    return seed


def _few_elements(weight: tf.Tensor) -> tf.Tensor:
    """Returns a weight's last column, or all of a vector, float32 [n]."""
    column = weight[..., -1] if len(weight.shape) > 1 else weight
    return tf.reshape(tf.cast(column, tf.float32), [-1])


def norm_layer(norm: Norm, channels: int) -> Block:
    """Returns a normalization of `[n, ..., channels]`.

    Args:
      norm: "batch"; "group" for two groups of channels, with the same trainable weights
        and no non-trainable ones; "none" for the identity.
      channels: The number of channels; even.
    """
    ones, zeros = np.ones(channels, np.float32), initializers.zeros(channels)
    match norm:
        case "batch":
            return Block(
                apply=_batch_norm,
                trainable=(ones, zeros),
                non_trainable=(zeros, ones),
                batch_norm=(True, True),
            )
        case "group":
            function = functools.partial(
                group_norm.group_norm,
                num_groups=NUM_GROUPS,
                epsilon=normalization.EPSILON,
            )
            return layer(function, ones, zeros)
        case "none":
            return chain()


def _batch_norm(trainable, non_trainable, x, mode):
    return normalization.batch_norm(
        x, *trainable, *non_trainable, batch_statistics=mode.batch_statistics
    )


def residual(body: Block, shortcut: Callable[[tf.Tensor], tf.Tensor]) -> Block:
    """Returns `relu(body(x) + shortcut(x))`; `shortcut` has no weights."""

    def apply(trainable, non_trainable, x, mode):
        output, updated = body.apply(trainable, non_trainable, x, mode)
        return tf.nn.relu(output + shortcut(x)), updated

    return Block(
        apply=apply,
        trainable=body.trainable,
        non_trainable=body.non_trainable,
        has_dropout=body.has_dropout,
        batch_norm=body.batch_norm,
        frozen=body.frozen,
    )
