"""Batch and group normalization as pure functions of weights, statistics and inputs.

Ioffe and Szegedy, "Batch normalization: accelerating deep network training by
reducing internal covariate shift", ICML 2015 (https://arxiv.org/abs/1502.03167), with
PyTorch's conventions: a batch has weight 0.1 in the moving statistics, which use the
unbiased variance; normalization uses the biased variance. Wu and He, "Group
normalization", ECCV 2018 (https://arxiv.org/abs/1803.08494), without moving statistics.

Both have an explicit gradient: with automatic differentiation, training takes twice as
many passes over the activations.
"""

import math

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
    channels = x.shape[-1]
    points = tf.reshape(x, [1, -1, channels])
    normalized, mean, variance = _normalized(points, gamma, beta, num_groups=channels)
    mean, variance = mean[0], variance[0]
    count = tf.cast(tf.shape(points)[1], x.dtype)
    unbiased = variance * (count / tf.maximum(count - 1.0, 1.0))
    unbiased = tf.where(count > 1.0, unbiased, moving_variance)
    moved = (_moved(moving_mean, mean), _moved(moving_variance, unbiased))
    return tf.reshape(normalized, tf.shape(x)), moved


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
    points = tf.reshape(x, [-1, math.prod(pixels), channels])
    normalized, *_ = _normalized(points, gamma, beta, num_groups)
    return tf.reshape(normalized, [-1, *pixels, channels])


def _normalized(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, num_groups: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Normalizes groups of channels over points, for each example separately.

    Args:
      x: float `[n, points, channels]`.
      gamma: float `[channels]`.
      beta: float `[channels]`.
      num_groups: A divisor of the number of channels.

    Returns:
      A tensor like `x`, and the mean and the biased variance of each channel's group,
      `[n, channels]`, without gradients.
    """
    channels = x.shape[2]
    group_size = channels // num_groups

    def group_means(sums: tf.Tensor) -> tf.Tensor:
        """Returns the means in groups of which the channels' sums are given."""
        grouped = tf.reshape(sums, [-1, num_groups, group_size])
        count = tf.cast(tf.shape(x)[1] * group_size, x.dtype)
        means = tf.reduce_sum(grouped, axis=2, keepdims=True) / count
        return tf.reshape(tf.tile(means, [1, 1, group_size]), [-1, 1, channels])

    @tf.custom_gradient
    def normalized(x, gamma, beta):
        mean = group_means(tf.reduce_sum(x, axis=1))
        centered = x - mean
        variance = group_means(tf.reduce_sum(tf.square(centered), axis=1))
        inverse = tf.math.rsqrt(variance + EPSILON)

        def gradients(upstream, *_):
            # With the standardized values s = inverse * centered and u = gamma *
            # upstream, the gradient of x is inverse * (u - mean(u) - s * mean(s * u)).
            sums = tf.reduce_sum(upstream, axis=1)
            products = inverse[:, 0] * tf.reduce_sum(upstream * centered, axis=1)
            along_centered = group_means(gamma * products) * inverse * inverse
            constant = group_means(gamma * sums) * inverse
            of_x = upstream * (inverse * gamma) - (centered * along_centered + constant)
            return of_x, tf.reduce_sum(products, axis=0), tf.reduce_sum(sums, axis=0)

        output = centered * (inverse * gamma) + beta
        return (output, mean[:, 0], variance[:, 0]), gradients

    return normalized(x, gamma, beta)


def _affine(
    centered: tf.Tensor, variance: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
) -> tf.Tensor:
    return centered * (tf.math.rsqrt(variance + EPSILON) * gamma) + beta


def _moved(moving: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    return moving + MOMENTUM * (tf.stop_gradient(batch) - moving)
