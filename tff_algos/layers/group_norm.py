"""Group normalization with an explicit gradient.

Wu and He, "Group normalization", ECCV 2018 (https://arxiv.org/abs/1803.08494). With
automatic differentiation, training takes twice as many passes over the activations.
"""

import math

import tensorflow as tf


def group_norm(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    num_groups: int,
    epsilon: float,
) -> tf.Tensor:
    """Normalizes groups of channels over each example separately.

    Args:
      x: float `[n, ..., channels]`, the number of channels static.
      gamma: float `[channels]`, the output channels' standard deviations.
      beta: float `[channels]`, the output channels' means.
      num_groups: A divisor of the number of channels.
      epsilon: Added to variances.

    Returns:
      A tensor like `x`.
    """
    *pixels, channels = x.shape[1:]
    if None in pixels:
        shape = tf.shape(x)
        points = [shape[0], tf.reduce_prod(shape[1:-1]), channels]
    else:
        shape, points = [-1, *pixels, channels], [-1, math.prod(pixels), channels]
    normalized, *_ = normalize_groups(
        tf.reshape(x, points), gamma, beta, num_groups, epsilon
    )
    return tf.reshape(normalized, shape)


def normalize_groups(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    num_groups: int,
    epsilon: float,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Normalizes groups of channels over points, for each example separately.

    Args:
      x: float `[n, points, channels]`, the number of channels static.
      gamma: As in `group_norm`.
      beta: As in `group_norm`.
      num_groups: As in `group_norm`.
      epsilon: As in `group_norm`.

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
        inverse = tf.math.rsqrt(variance + epsilon)

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
