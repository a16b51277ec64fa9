"""Batch and group normalization as pure functions of weights, statistics and inputs.

Ioffe and Szegedy, "Batch normalization: accelerating deep network training by
reducing internal covariate shift", ICML 2015 (https://arxiv.org/abs/1502.03167), with
PyTorch's conventions: a batch has weight 0.1 in the moving statistics, which use the
unbiased variance; normalization uses the biased variance. Wu and He, "Group
normalization", ECCV 2018 (https://arxiv.org/abs/1803.08494), without moving statistics.

Moments are computed explicitly: `tf.nn.moments` stops gradients at the mean, so its
variance has wrong second derivatives.
"""

from collections.abc import Sequence

import tensorflow as tf

# The weight of a batch in the moving statistics, and the constant added to variances.
MOMENTUM = 0.1
EPSILON = 1e-5


def batch_norm(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    moving_mean: tf.Tensor,
    moving_variance: tf.Tensor,
    batch_statistics: bool,
) -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
    """Normalizes every channel over a batch.

    Args:
      x: float `[n, ..., channels]`.
      gamma: float `[channels]`, the output channels' standard deviations.
      beta: float `[channels]`, the output channels' means.
      moving_mean: float `[channels]`.
      moving_variance: float `[channels]`.
      batch_statistics: Whether to normalize by the batch's mean and variance and update
        the moving statistics, or to normalize by the moving statistics.

    Returns:
      A tensor like `x`, and the new moving mean and variance, without gradients. A
      batch of one value per channel becomes `beta` and does not update the moving
      variance, because it has no unbiased variance.
    """
    if not batch_statistics:
        output = _affine(x - moving_mean, moving_variance, gamma, beta)
        return output, (moving_mean, moving_variance)
    centered, mean, variance = _moments(x, range(x.shape.rank - 1))
    count = tf.cast(tf.size(x) // x.shape[-1], x.dtype)
    unbiased = variance * (count / tf.maximum(count - 1.0, 1.0))
    unbiased = tf.where(count > 1.0, unbiased, moving_variance)
    moved = (_moved(moving_mean, mean), _moved(moving_variance, unbiased))
    return _affine(centered, variance, gamma, beta), moved


def group_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, num_groups: int
) -> tf.Tensor:
    """Normalizes groups of channels over each example separately.

    Args:
      x: float `[n, ..., channels]`, all but n static.
      gamma: float `[channels]`.
      beta: float `[channels]`.
      num_groups: A divisor of the number of channels.

    Returns:
      A tensor like `x`.
    """
    *pixels, channels = x.shape[1:]
    grouped = tf.reshape(x, [-1, *pixels, num_groups, channels // num_groups])
    rank = grouped.shape.rank
    centered, _, variance = _moments(
        grouped, [*range(1, rank - 2), rank - 1], keepdims=True
    )
    normalized = centered * tf.math.rsqrt(variance + EPSILON)
    return tf.reshape(normalized, [-1, *pixels, channels]) * gamma + beta


def _moments(
    x: tf.Tensor, axes: Sequence[int], keepdims: bool = False
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns `x` minus its mean, the mean, and the biased variance."""
    axes = list(axes)
    mean = tf.reduce_mean(x, axes, keepdims)
    centered = x - mean
    return centered, mean, tf.reduce_mean(tf.square(centered), axes, keepdims)


def _affine(
    centered: tf.Tensor, variance: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
) -> tf.Tensor:
    return centered * (tf.math.rsqrt(variance + EPSILON) * gamma) + beta


def _moved(moving: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    return moving + MOMENTUM * (tf.stop_gradient(batch) - moving)
