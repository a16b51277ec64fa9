"""Batch normalization: against TensorFlow's own, NumPy, finite differences."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import normalization
from tests.testing import normalizations
from tests.testing.normalizations import CHANNELS, random_arguments


@pytest.mark.parametrize("shape", [(6,), (3, 5, 2)])
def test_batches_are_normalized_as_in_numpy(shape):
    arguments = random_arguments(shape)
    output, (mean, variance) = normalization.batch_norm(*arguments, True)
    x, gamma, beta, old_mean, old_variance = (value.numpy() for value in arguments)
    rows = x.reshape(-1, CHANNELS)
    normalized = (x - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-5)
    np.testing.assert_allclose(output, normalized * gamma + beta, rtol=1e-12)
    np.testing.assert_allclose(mean, 0.9 * old_mean + 0.1 * rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(
        variance, 0.9 * old_variance + 0.1 * rows.var(0, ddof=1), rtol=1e-12
    )


def test_moving_statistics_normalize_as_in_numpy():
    arguments = random_arguments((6,))
    output, moving = normalization.batch_norm(*arguments, False)
    x, gamma, beta, mean, variance = (value.numpy() for value in arguments)
    expected = (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta
    np.testing.assert_allclose(output, expected, rtol=1e-12)
    assert moving[0] is arguments[3] and moving[1] is arguments[4]


@pytest.mark.parametrize("training", [True, False])
def test_images_are_normalized_as_by_tensorflows_fused_op(training):
    arguments = random_arguments((5, 3, 2), dtype=np.float32)

    def fused(x, gamma, beta, mean, variance):
        return tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=gamma,
            offset=beta,
            mean=mean,
            variance=variance,
            epsilon=1e-5,
            exponential_avg_factor=0.1,
            is_training=training,
        )[:3]

    def ours(*arguments):
        output, moving = normalization.batch_norm(*arguments, training)
        return output, *moving

    def gradients(function):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            total = tf.reduce_sum(tf.sin(function(*arguments)[0]))
        return tape.gradient(total, arguments[:3])

    for got, expected in zip(ours(*arguments), fused(*arguments), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    for got, expected in zip(gradients(ours), gradients(fused), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_statistics_after_two_batches_are_those_computed_by_hand():
    mean, variance = tf.constant([0.0]), tf.constant([1.0])
    gamma, beta = tf.constant([1.0]), tf.constant([0.0])
    for batch in ([[1.0], [3.0]], [[4.0], [10.0], [4.0]]):
        _, (mean, variance) = normalization.batch_norm(
            tf.constant(batch), gamma, beta, mean, variance, True
        )
    # Means 2 and 6, unbiased variances 2 and 12.
    np.testing.assert_allclose(mean, [0.9 * 0.2 + 0.6], rtol=1e-6)
    np.testing.assert_allclose(variance, [0.9 * (0.9 + 0.2) + 1.2], rtol=1e-6)


def test_a_batch_of_one_value_gives_beta_and_keeps_the_variance():
    arguments = random_arguments((1,))
    x, _, beta, old_mean, old_variance = arguments
    with tf.GradientTape() as outer:
        outer.watch(arguments)
        with tf.GradientTape() as inner:
            inner.watch(arguments)
            output, (mean, variance) = normalization.batch_norm(*arguments, True)
            total = tf.reduce_sum(tf.sin(output))
        gradients = inner.gradient(total, arguments[:3])
    second = outer.gradient(gradients, arguments[:3])
    np.testing.assert_array_equal(output[0], beta)
    np.testing.assert_array_equal(variance, old_variance)
    np.testing.assert_allclose(mean, 0.9 * old_mean + 0.1 * x[0], rtol=1e-12)
    assert all(np.isfinite(value).all() for value in (*gradients, *second))
    # One image of more than one pixel has a variance.
    image = random_arguments((1, 2, 2))
    assert np.any(normalization.batch_norm(*image, True)[1][1] != image[4])


def test_no_gradient_flows_through_moving_statistics():
    arguments = random_arguments((6,))
    with tf.GradientTape() as tape:
        tape.watch(arguments[0])
        _, moving = normalization.batch_norm(*arguments, True)
    assert tape.gradient(moving, arguments[0]) is None


def _batch(x, gamma, beta):
    zeros, ones = tf.zeros([CHANNELS], x.dtype), tf.ones([CHANNELS], x.dtype)
    return normalization.batch_norm(x, gamma, beta, zeros, ones, True)[0]


def test_derivatives_equal_finite_differences():
    normalizations.assert_derivatives_equal_finite_differences(_batch)


@pytest.mark.parametrize("shape", [(5,), (3, 2, 2)])
def test_clients_are_vectorized(shape):
    normalizations.assert_clients_are_vectorized(_batch, shape)


def test_statistics_of_clients_are_vectorized():
    clients = [random_arguments((3, 2, 2), seed) for seed in range(3)]

    def moved(client):
        return normalization.batch_norm(*client, True)[1]

    batched = tf.vectorized_map(
        moved,
        tf.nest.map_structure(lambda *values: tf.stack(values), *clients),
        fallback_to_while_loop=False,
    )
    for index, one in enumerate(clients):
        for got, expected in zip(batched, moved(one), strict=True):
            np.testing.assert_allclose(got[index], expected, rtol=1e-12)
