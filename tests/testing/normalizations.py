"""Functions of x, gamma and beta that normalize: their derivatives, and many clients."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

CHANNELS = 4

Normalization = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def random_arguments(shape, seed=0, dtype=np.float64) -> tuple[tf.Tensor, ...]:
    """Returns x `[*shape, CHANNELS]`, gamma, beta, a mean and a variance `[CHANNELS]`."""
    rng = np.random.default_rng(seed)
    x = 3.0 + 2.0 * rng.standard_normal((*shape, CHANNELS))
    gamma, beta, mean = rng.standard_normal((3, CHANNELS))
    variance = rng.uniform(0.5, 2.0, CHANNELS)
    return tuple(tf.constant(v.astype(dtype)) for v in (x, gamma, beta, mean, variance))


def gradients(function: Normalization, values: tuple[tf.Tensor, ...]):
    """Returns the gradients of a nonlinear function of all outputs."""
    with tf.GradientTape() as tape:
        tape.watch(values)
        total = tf.reduce_sum(tf.sin(function(*values)))
    return tape.gradient(total, values)


def hessian_product(function: Normalization, values, direction):
    """Returns the product of that function's Hessian matrix with a direction."""
    with tf.GradientTape() as tape:
        tape.watch(values)
        first = gradients(function, values)
    return tape.gradient(first, values, output_gradients=direction)


def assert_derivatives_equal_finite_differences(function: Normalization) -> None:
    """Compares gradients and a product with the Hessian matrix, in float64."""
    values = random_arguments((3, 2, 2))[:3]
    direction = random_arguments((3, 2, 2), seed=1)[:3]
    step = 1e-5

    def moved(sign):
        return tuple(a + sign * step * d for a, d in zip(values, direction))

    def total(at):
        return tf.reduce_sum(tf.sin(function(*at)))

    slope = (total(moved(1)) - total(moved(-1))) / (2 * step)
    along = sum(
        tf.reduce_sum(g * d) for g, d in zip(gradients(function, values), direction)
    )
    np.testing.assert_allclose(along, slope, rtol=1e-6)

    above, below = (gradients(function, moved(sign)) for sign in (1, -1))
    product = hessian_product(function, values, direction)
    for got, a, b in zip(product, above, below, strict=True):
        assert np.abs(got).max() > 0.1
        np.testing.assert_allclose(got, (a - b) / (2 * step), rtol=1e-5, atol=1e-6)


def assert_clients_are_vectorized(function: Normalization, shape) -> None:
    """Compares derivatives of three clients at once with those one by one."""
    clients = [
        (random_arguments(shape, seed)[:3], random_arguments(shape, seed + 9)[:3])
        for seed in range(3)
    ]

    def run(client):
        values, direction = client
        return gradients(function, values), hessian_product(function, values, direction)

    batched = tf.vectorized_map(
        run,
        tf.nest.map_structure(lambda *values: tf.stack(values), *clients),
        fallback_to_while_loop=False,
    )
    for index, one in enumerate(clients):
        tf.nest.map_structure(
            lambda got, expected, index=index: np.testing.assert_allclose(
                got[index], expected, rtol=1e-8, atol=1e-10
            ),
            batched,
            run(one),
        )
