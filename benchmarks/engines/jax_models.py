"""The workloads' models as functions of JAX arrays, in Keras' layout."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from benchmarks.engines import workloads


def _cnn(weights: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    filters_1, bias_1, filters_2, bias_2, *head = weights
    for filters, bias in ((filters_1, bias_1), (filters_2, bias_2)):
        x = jax.lax.conv_general_dilated(
            x,
            filters,
            window_strides=(1, 1),
            padding="VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        x = jax.nn.relu(x + bias)
    x = jax.lax.reduce_window(
        x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
    )
    return _dense(head, x.reshape(x.shape[0], -1))


def _dense(weights: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    *hidden, kernel, bias = weights
    if hidden:
        hidden_kernel, hidden_bias = hidden
        x = jax.nn.relu(x @ hidden_kernel + hidden_bias)
    return x @ kernel + bias


def _lstm_layer(
    x: jax.Array, kernel: jax.Array, recurrent_kernel: jax.Array, bias: jax.Array
) -> jax.Array:
    """Returns the outputs `[time, n, units]` for inputs `[time, n, in]`."""
    projected = x @ kernel + bias

    def step(carry, inputs):
        output, cell = carry
        gates = jnp.split(inputs + output @ recurrent_kernel, 4, axis=-1)
        in_, forget, out = (jax.nn.sigmoid(gates[n]) for n in (0, 1, 3))
        cell = forget * cell + in_ * jnp.tanh(gates[2])
        output = out * jnp.tanh(cell)
        return (output, cell), output

    zeros = jnp.zeros((x.shape[1], workloads.UNITS), x.dtype)
    return jax.lax.scan(step, (zeros, zeros), projected)[1]


def _lstm(weights: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    embedding, *layers, kernel, bias = weights
    hidden = embedding[x.T]
    for start in range(0, len(layers), 3):
        hidden = _lstm_layer(hidden, *layers[start : start + 3])
    return jnp.transpose(hidden, (1, 0, 2)) @ kernel + bias


def logits_fn(
    workload: workloads.Workload,
) -> Callable[[Sequence[jax.Array], jax.Array], jax.Array]:
    """Returns the function from (weights, x) to logits `[n, ..., classes]`."""
    return {"cnn": _cnn, "dense": _dense, "lstm": _lstm}[workload.model]


def example_losses(logits: jax.Array, y: jax.Array) -> jax.Array:
    """Returns cross entropies `[n]`, means over the positions of a sequence."""
    log_probabilities = jax.nn.log_softmax(logits)
    losses = -jnp.take_along_axis(log_probabilities, y[..., None], axis=-1)[..., 0]
    return losses.reshape(losses.shape[0], -1).mean(axis=1)


def mean_loss(workload: workloads.Workload) -> Callable[..., jax.Array]:
    """Returns the function from (weights, x, y) to the batch's mean loss."""
    logits = logits_fn(workload)
    return lambda weights, x, y: example_losses(logits(weights, x), y).mean()
