"""Batch normalization as a pure function of weights, statistics and inputs.

Ioffe and Szegedy, "Batch normalization: accelerating deep network training by
reducing internal covariate shift", ICML 2015 (https://arxiv.org/abs/1502.03167), with
PyTorch's conventions: a batch has weight 0.1 in the moving statistics, which use the
unbiased variance; normalization uses the biased variance.
"""

import tensorflow as tf

from tff_algos.layers import group_norm

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
    normalized, mean, variance = group_norm.normalize_groups(
        points, gamma, beta, num_groups=channels, epsilon=EPSILON
    )
    mean, variance = mean[0], variance[0]
    count = tf.cast(tf.shape(points)[1], x.dtype)
    unbiased = variance * (count / tf.maximum(count - 1.0, 1.0))
    unbiased = tf.where(count > 1.0, unbiased, moving_variance)
    moved = (_moved(moving_mean, mean), _moved(moving_variance, unbiased))
    return tf.reshape(normalized, tf.shape(x)), moved


def _affine(
    centered: tf.Tensor, variance: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
) -> tf.Tensor:
    return centered * (tf.math.rsqrt(variance + EPSILON) * gamma) + beta


def _moved(moving: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    return moving + MOMENTUM * (tf.stop_gradient(batch) - moving)
