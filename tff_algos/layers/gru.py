"""A GRU layer with custom first and second derivatives.

See `tff_algos.layers.recurrence` for the reasons. The gradient of a step's gates is the
gradient of its output times factors that depend only on the forward pass. These are
computed for all steps at once, and the loops only multiply by them.

Source of the equations: Cho et al., "Learning phrase representations using RNN
encoder-decoder for statistical machine translation", EMNLP 2014
(https://arxiv.org/abs/1406.1078), in the variant of cuDNN and Keras (`reset_after`):
the reset gate acts on the recurrent product, which has its own bias. Gates are in
Keras' order: update (z), reset (r), candidate (h).
"""

from typing import NamedTuple

import tensorflow as tf

from tff_algos.layers import recurrence


def gru(
    x: tf.Tensor,
    kernel: tf.Tensor,
    recurrent_kernel: tf.Tensor,
    bias: tf.Tensor,
    gradient: recurrence.Gradient = "fused",
) -> tf.Tensor:
    """Returns the outputs of a GRU layer with zero initial state.

    Args:
      x: float `[time, n, in]`, time first.
      kernel: float `[in, 3 * units]`, gates in the order z, r, h.
      recurrent_kernel: float `[units, 3 * units]`.
      bias: float `[2, 3 * units]`: the inputs' and the recurrent bias.
      gradient: How the layer is differentiated, see `recurrence.apply`.

    Returns:
      float `[time, n, units]`.

    Raises:
      ValueError: If `gradient` is unknown.
    """
    input_bias, recurrent_bias = tf.unstack(bias)

    def outputs_of(x: tf.Tensor) -> tf.Tensor:
        projected = recurrence.product(x, kernel) + input_bias
        arguments = (projected, recurrent_kernel, recurrent_bias)
        return recurrence.apply(_GRU, arguments, gradient)

    return recurrence.with_usual_sizes(outputs_of, x)


class _Saved(NamedTuple):
    """The values computed by the loop, `[time, n, units]` each."""

    outputs: tf.Tensor
    update: tf.Tensor
    reset: tf.Tensor
    candidate: tf.Tensor
    recurrent: tf.Tensor  # The recurrent part of the candidate, before the reset.


class _Factors(NamedTuple):
    """Derivatives of a step's output by pre-activations, `[time, n, units]`."""

    update: tf.Tensor
    reset: tf.Tensor
    candidate: tf.Tensor
    recurrent: tf.Tensor

    def by_projected(self) -> tf.Tensor:
        """Returns the derivatives by the inputs' part, `[time, n, 3 * units]`."""
        return tf.concat([self.update, self.reset, self.candidate], axis=2)

    def by_total(self) -> tf.Tensor:
        """Returns the derivatives by the recurrent part, `[time, n, 3 * units]`."""
        return tf.concat([self.update, self.reset, self.recurrent], axis=2)


def _forward(arguments: recurrence.Tensors) -> tuple[tf.Tensor, _Saved]:
    projected, recurrent_kernel, recurrent_bias = arguments
    units = recurrent_kernel.shape[0]
    times_kernel = recurrence.multiplier(recurrent_kernel)

    def step(state, inputs):
        (output,), (input_,) = state, inputs
        total = times_kernel(output) + recurrent_bias
        input_gates, input_candidate = tf.split(input_, [2 * units, units], axis=1)
        gates, recurrent = tf.split(total, [2 * units, units], axis=1)
        update, reset = tf.split(tf.sigmoid(input_gates + gates), 2, axis=1)
        candidate = tf.tanh(input_candidate + reset * recurrent)
        output = candidate + update * (output - candidate)
        return (output,), (output, update, reset, candidate, recurrent)

    zeros = tf.zeros([tf.shape(projected)[1], units], projected.dtype)
    saved = _Saved(*recurrence.scan(step, (zeros,), (projected,), [units] * 5))
    return saved.outputs, saved


def _factors(saved: _Saved) -> _Factors:
    update, reset, candidate = saved.update, saved.reset, saved.candidate
    by_candidate = (1.0 - update) * (1.0 - candidate * candidate)
    return _Factors(
        update=(recurrence.delayed(saved.outputs) - candidate)
        * (update * (1.0 - update)),
        reset=by_candidate * saved.recurrent * (reset * (1.0 - reset)),
        candidate=by_candidate,
        recurrent=by_candidate * reset,
    )


def _backward(
    arguments: recurrence.Tensors, saved: _Saved, upstream: tf.Tensor
) -> tuple[recurrence.Tensors, tf.Tensor]:
    """Returns gradients of the arguments and of the outputs, `[time, n, units]`."""
    _, recurrent_kernel, _ = arguments
    factors = _factors(saved)
    by_total = factors.by_total()
    d_outputs = _walk_back(recurrent_kernel, by_total, saved.update, upstream)
    spread = _for_gates(d_outputs)
    d_totals = by_total * spread
    gradients = (
        factors.by_projected() * spread,
        recurrence.outer_products(recurrence.delayed(saved.outputs), d_totals),
        tf.reduce_sum(d_totals, axis=[0, 1]),
    )
    return gradients, d_outputs


def _walk_back(
    recurrent_kernel: tf.Tensor,
    by_total: tf.Tensor,
    update: tf.Tensor,
    upstream: tf.Tensor,
    *own: tf.Tensor,
) -> tf.Tensor:
    """Propagates gradients of the outputs back through time.

    Args:
      recurrent_kernel: `[units, 3 * units]`.
      by_total: `_Factors.by_total`.
      update: `[time, n, units]`, the update gate.
      upstream: `[time, n, units]`, the upstream gradient of every step's output.
      *own: `[time, n, 3 * units]`, added to the gradients of the pre-activations.

    Returns:
      `[time, n, units]`, the total gradient of every step's output.
    """

    times_transposed = recurrence.multiplier(recurrent_kernel, transpose=True)

    def step(state, inputs):
        (d_output,), (upstream, factor, update, *own) = state, inputs
        d_output += upstream
        d_total = tf.add_n([factor * _for_gates(d_output, axis=1), *own])
        return (times_transposed(d_total) + d_output * update,), (d_output,)

    (d_outputs,) = recurrence.scan(
        step,
        (tf.zeros_like(upstream[0]),),
        (upstream, by_total, update, *own),
        [recurrent_kernel.shape[0]],
        reverse=True,
    )
    return d_outputs


def _second(
    arguments: recurrence.Tensors,
    saved: _Saved,
    upstream: tf.Tensor,
    d_outputs: tf.Tensor,
    directions: recurrence.Tensors,
) -> recurrence.Tensors:
    """Returns the tangents of the outputs and of the gradients."""
    del upstream  # Already included in `d_outputs`.
    _, recurrent_kernel, _ = arguments
    _, along_kernel, _ = directions
    factors = _factors(saved)
    tangents = _tangents(recurrent_kernel, saved, factors, directions)
    factors_tangent = _factors_tangent(saved, factors, tangents)
    by_total, by_projected = factors.by_total(), factors.by_projected()
    spread = _for_gates(d_outputs)
    d_totals = by_total * spread
    own = factors_tangent.by_total() * spread
    # The gradient that a step passes to the previous one, along the weights' tangents.
    handed = d_outputs * tangents.update + recurrence.product(
        d_totals, along_kernel, transpose=True
    )
    d_outputs_tangent = _walk_back(
        recurrent_kernel, by_total, saved.update, recurrence.advanced(handed), own
    )
    spread_tangent = _for_gates(d_outputs_tangent)
    d_totals_tangent = own + by_total * spread_tangent
    before, before_tangent = map(recurrence.delayed, (saved.outputs, tangents.outputs))
    return (
        tangents.outputs,
        factors_tangent.by_projected() * spread + by_projected * spread_tangent,
        recurrence.outer_products(before_tangent, d_totals)
        + recurrence.outer_products(before, d_totals_tangent),
        tf.reduce_sum(d_totals_tangent, axis=[0, 1]),
    )


def _tangents(
    recurrent_kernel: tf.Tensor,
    saved: _Saved,
    factors: _Factors,
    directions: recurrence.Tensors,
) -> _Saved:
    """Returns the directional derivatives of the loop's values."""
    along_projected, along_kernel, along_bias = directions
    units = recurrent_kernel.shape[0]
    by_total = factors.by_total()
    before = recurrence.delayed(saved.outputs)
    known_totals = recurrence.product(before, along_kernel) + along_bias
    known = _sum_of_gates(
        by_total * known_totals + factors.by_projected() * along_projected
    )
    times_kernel = recurrence.multiplier(recurrent_kernel)

    def step(state, inputs):
        (output,), (known, factor, update) = state, inputs
        total = times_kernel(output)
        output = known + update * output + _sum_of_gates(factor * total, axis=1)
        return (output,), (output, total)

    outputs, totals = recurrence.scan(
        step,
        (tf.zeros_like(known[0]),),
        (known, by_total, saved.update),
        [units, 3 * units],
    )
    in_update, in_reset, recurrent = tf.split(totals + known_totals, 3, axis=2)
    along_update, along_reset, along_candidate = tf.split(along_projected, 3, axis=2)
    update = saved.update * (1.0 - saved.update) * (along_update + in_update)
    reset = saved.reset * (1.0 - saved.reset) * (along_reset + in_reset)
    candidate = (1.0 - saved.candidate * saved.candidate) * (
        along_candidate + reset * saved.recurrent + saved.reset * recurrent
    )
    return _Saved(outputs, update, reset, candidate, recurrent)


def _factors_tangent(saved: _Saved, factors: _Factors, tangents: _Saved) -> _Factors:
    update, reset, candidate = saved.update, saved.reset, saved.candidate
    change = recurrence.delayed(saved.outputs) - candidate
    change_tangent = recurrence.delayed(tangents.outputs) - tangents.candidate
    by_candidate = -tangents.update * (1.0 - candidate * candidate) - (
        2.0 * (1.0 - update) * candidate * tangents.candidate
    )
    reset_slope = reset * (1.0 - reset)
    return _Factors(
        update=change_tangent * (update * (1.0 - update))
        + change * (1.0 - 2.0 * update) * tangents.update,
        reset=by_candidate * saved.recurrent * reset_slope
        + factors.candidate
        * (
            tangents.recurrent * reset_slope
            + saved.recurrent * (1.0 - 2.0 * reset) * tangents.reset
        ),
        candidate=by_candidate,
        recurrent=by_candidate * reset + factors.candidate * tangents.reset,
    )


def _for_gates(x: tf.Tensor, axis: int = 2) -> tf.Tensor:
    """Returns `x` repeated three times, once for every gate."""
    return tf.concat([x, x, x], axis=axis)


def _sum_of_gates(x: tf.Tensor, axis: int = 2) -> tf.Tensor:
    return tf.add_n(tf.split(x, 3, axis=axis))


_GRU = recurrence.Recurrence(forward=_forward, backward=_backward, second=_second)
