"""Pure TensorFlow layers: functions of weights and inputs, without state or Keras.

They run eagerly, in a `tff.tensorflow.computation`, and under `tf.vectorized_map` with
different weights for each element. They are twice differentiable.
"""

import math

import numpy as np
import tensorflow as tf

# Odd constants of the 32-bit finalizer of MurmurHash3 (public domain) and the
# golden ratio of 2**32, which spreads consecutive integers.
_MIX_1 = np.uint32(0x85EBCA6B)
_MIX_2 = np.uint32(0xC2B2AE35)
_GOLDEN = np.uint32(0x9E3779B9)

# Float bits that a fingerprint ignores: rounding differences between runtimes
# rarely reach the others, an optimizer's step nearly always does.
_ROUNDING_BITS = 12


def dense(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Returns `x @ kernel + bias`: `[n, in], [in, out], [out] -> [n, out]`."""
    return tf.matmul(x, kernel) + bias


def conv2d(
    x: tf.Tensor, filters: tf.Tensor, bias: tf.Tensor, padding: str
) -> tf.Tensor:
    """Returns the stride-1 convolution of `x`, channels last.

    Args:
      x: float `[n, height, width, in]`.
      filters: float `[filter height, filter width, in, out]`.
      bias: float `[out]`.
      padding: "SAME" or "VALID".
    """
    return tf.nn.conv2d(x, filters, strides=1, padding=padding) + bias


def conv2d_3x3(x: tf.Tensor, filters: tf.Tensor, strides: int = 1) -> tf.Tensor:
    """Returns a convolution centered at every `strides`-th pixel, without a bias.

    With `strides` 2, TensorFlow's "SAME" centers windows at odd pixels; this function
    centers them at even pixels, like PyTorch, that is, at those of `x[:, ::2, ::2]`.

    Args:
      x: float `[n, height, width, in]`.
      filters: float `[3, 3, in, out]`.
      strides: At least 1.

    Returns:
      float `[n, ceil(height / strides), ceil(width / strides), out]`.
    """
    if strides == 1:
        return tf.nn.conv2d(x, filters, strides=1, padding="SAME")
    x = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])
    return tf.nn.conv2d(x, filters, strides=strides, padding="VALID")


def max_pool2d(x: tf.Tensor) -> tf.Tensor:
    """Returns the 2 x 2 maxima: `[n, h, w, c] -> [n, ceil(h/2), ceil(w/2), c]`."""
    return tf.nn.max_pool2d(x, ksize=2, strides=2, padding="SAME")


def flatten(x: tf.Tensor) -> tf.Tensor:
    """Returns `x` of static shape `[n, ...]` as `[n, size]`; n may be unknown."""
    return tf.reshape(x, [-1, math.prod(x.shape[1:])])


def fingerprint(weights: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    """Returns a uint32 scalar that depends on every element of both tensors.

    It uses only integer arithmetic, so it is the same on every device. It replaces a
    stream of random seeds in a pure function: other weights (after a step) or another
    batch give another seed. Low bits of `weights` are ignored, so rounding differences
    rarely change it.

    Args:
      weights: float32 of any shape, few elements (a bias).
      batch: float32 or int32 of any shape.
    """
    weight_bits = tf.bitwise.right_shift(
        tf.bitcast(tf.stop_gradient(weights), tf.uint32), np.uint32(_ROUNDING_BITS)
    )
    batch_bits = tf.bitcast(tf.stop_gradient(batch), tf.uint32)
    # Mix in between: otherwise changes of the two could cancel.
    return _mix(_hash_sum(weight_bits) * _GOLDEN + _hash_sum(batch_bits))


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor, salt: int) -> tf.Tensor:
    """Zeroes each element with probability `rate`, scales the others by 1/(1-rate).

    The mask is a hash of (`seed`, `salt`, position): deterministic on every
    device, and elementwise, so it batches under `tf.vectorized_map`.

    Args:
      x: Of any shape and floating-point dtype.
      rate: The dropout rate, in [0, 1).
      seed: uint32 scalar, for example a `fingerprint`.
      salt: A number that distinguishes the dropout layers of one model.

    Returns:
      A tensor like `x`.
    """
    position = tf.reshape(_positions(tf.size(x)), tf.shape(x))
    salted = position + np.uint32(salt * int(_MIX_1) % 2**32)
    bits = _mix(_mix(salted) ^ seed)
    keep = bits >= np.uint32(min(round(rate * 2**32), 2**32 - 1))
    return tf.where(keep, x * (1.0 / (1.0 - rate)), tf.zeros_like(x))


def spatial_dropout(x: tf.Tensor, rate: float, seed: tf.Tensor, salt: int) -> tf.Tensor:
    """Drops whole channels of each image, scales the others by 1/(1-rate).

    Source: Tompson et al., "Efficient object localization using convolutional
    networks", CVPR 2015 (https://arxiv.org/abs/1411.4280).

    Args:
      x: float32 `[n, height, width, channels]`.
      rate: The dropout rate, in [0, 1).
      seed: As in `dropout`.
      salt: As in `dropout`.
    """
    channels = tf.ones_like(x[:, :1, :1, :])
    return x * dropout(channels, rate, seed, salt)


def _positions(size: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.range(size), tf.uint32) * _GOLDEN


def _hash_sum(bits: tf.Tensor) -> tf.Tensor:
    flat = tf.reshape(bits, [-1])
    return tf.reduce_sum(_mix(flat + _positions(tf.size(flat))))


def _mix(bits: tf.Tensor) -> tf.Tensor:
    """Mixes bits: a bijection of uint32; each input bit flips half the output bits."""
    shift = tf.bitwise.right_shift
    bits = (bits ^ shift(bits, np.uint32(16))) * _MIX_1
    bits = (bits ^ shift(bits, np.uint32(13))) * _MIX_2
    return bits ^ shift(bits, np.uint32(16))
