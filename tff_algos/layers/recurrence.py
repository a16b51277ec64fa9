"""Common parts of recurrent layers: a loop over time and custom derivatives.

Automatic differentiation of a time loop accumulates the gradient of the recurrent
weights at every step: for 256 units a megabyte, 80 times. A layer with custom
derivatives saves the loop's values, propagates only the state's gradient back through
time, and computes the weights' gradient with one matrix product at the end.

The second derivative is a product with the Hessian of `sum(upstream * outputs)`: the
loop's tangent along the given directions, then the tangent of the backward pass
(Pearlmutter, "Fast exact multiplication by the Hessian", Neural Computation 6, 1994).
A gradient and such a product take four loops, about two and a half times as long as a
gradient; with autodiff the product takes twice as long.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import attrs
import tensorflow as tf

from tff_algos import xla_marks

Gradient = Literal["fused", "autodiff"]

Tensors = tuple[tf.Tensor, ...]

_BAD_WIDTH = 512
_NUM_PADDING = 16  # A cache line of float32.

_USUAL_ROWS = (4, *(n << k for k in range(2, 29) for n in (2, 3)))
_USUAL_STEPS = tuple(n << k for k in range(28) for n in (4, 5, 6, 7))


@attrs.frozen(kw_only=True)
class Recurrence:
    """A function of tensors (the arguments) with its derivatives.

    Attributes:
      forward: `(arguments) -> (outputs, saved)`: the function, and values that its
        derivatives need; TensorFlow differentiates it under "autodiff".
      backward: `(arguments, saved, upstream) -> (gradients, kept)`: the gradient of
        `sum(upstream * outputs)` for every argument, and values that the second
        derivative needs.
      second: `(arguments, saved, upstream, kept, directions) -> (derivatives)`: the
        derivatives of the sum of `directions * gradients` by `upstream` and every
        argument.
    """

    forward: Callable[[Tensors], tuple[tf.Tensor, Any]]
    backward: Callable[[Tensors, Any, tf.Tensor], tuple[Tensors, Any]]
    second: Callable[[Tensors, Any, tf.Tensor, Any, Tensors], Tensors]
    _compiled: dict[str, Callable[..., Any]] = attrs.field(init=False, repr=False)

    @_compiled.default
    def _mark_functions(self) -> dict[str, Callable[..., Any]]:
        functions = (self.forward, self.backward, self.second)
        return {f.__name__: xla_marks.compiled_on_cpu(f) for f in functions}

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls one of the functions; XLA may compile the call.

        TensorFlow does not differentiate it, and results have no gradients.
        """
        # A tape that watches an argument would have TensorFlow differentiate the
        # function, and return every value of its loop.
        constants = _constants(arguments)
        return _constants(self._compiled[function.__name__](*constants))


def apply(
    recurrence: Recurrence, arguments: Sequence[tf.Tensor], gradient: Gradient
) -> tf.Tensor:
    """Returns the recurrence's outputs.

    Args:
      recurrence: The function.
      arguments: Its arguments.
      gradient: "fused" for the recurrence's custom first and second derivatives (the
        third uses autodiff), "autodiff" for TensorFlow's. Both give the same results.
        `tf.vectorized_map` supports only "fused" and its first two derivatives.

    Raises:
      ValueError: If `gradient` is neither "fused" nor "autodiff".
    """
    if gradient not in get_args(Gradient):
        raise ValueError(
            f"Expected gradient out of {get_args(Gradient)}, found {gradient!r}."
        )
    if gradient == "autodiff":
        return recurrence.forward(tuple(arguments))[0]

    @tf.custom_gradient
    def outputs_of(*arguments):
        outputs, saved = recurrence.call(recurrence.forward, arguments)

        def upstream_to_gradients(upstream):
            # Computed again in the gradient's graph, because the graph of the
            # gradient's own gradient cannot reach further back.
            return _gradients(recurrence, _constants(saved), upstream, arguments)

        return outputs, upstream_to_gradients

    return outputs_of(*arguments)


def _gradients(recurrence, saved, upstream, arguments):
    @tf.custom_gradient
    def gradients_of(upstream, *arguments):
        gradients, kept = recurrence.call(
            recurrence.backward, arguments, saved, upstream
        )

        # The second derivative is explicit because no tape records the saved values as
        # functions of the arguments.
        def directions_to_derivatives(*directions):
            return _second(recurrence, saved, kept, upstream, arguments, directions)

        return gradients, directions_to_derivatives

    return gradients_of(*_identities((upstream, *arguments)))


def _second(recurrence, saved, kept, upstream, arguments, directions):
    num_arguments = len(arguments)

    @tf.custom_gradient
    def derivatives_of(upstream, *others):
        arguments, directions = others[:num_arguments], others[num_arguments:]

        def third(*upstreams):
            everything = (upstream, *others)
            with tf.GradientTape() as tape:
                tape.watch(everything)
                derivatives = _second_by_autodiff(
                    recurrence, upstream, arguments, directions
                )
            return tape.gradient(derivatives, everything, list(upstreams))

        derivatives = recurrence.call(
            recurrence.second, arguments, saved, upstream, kept, directions
        )
        return derivatives, third

    return derivatives_of(*_identities((upstream, *arguments, *directions)))


def _second_by_autodiff(recurrence, upstream, arguments, directions):
    variables = (upstream, *arguments)
    with tf.GradientTape() as outer:
        outer.watch(variables)
        with tf.GradientTape() as inner:
            inner.watch(arguments)
            outputs, _ = recurrence.forward(arguments)
        gradients = inner.gradient(outputs, arguments, upstream)
    return outer.gradient(gradients, variables, list(directions))


def _constants(values):
    # TensorFlow adds tensors that a gradient uses to the outputs of a tf.function. When
    # the function is differentiated again, it would differentiate these outputs as well
    # (with zero gradients, through the loop).
    return tf.nest.map_structure(tf.stop_gradient, values)


def _identities(values: Tensors) -> Tensors:
    # Gives a derivative its arguments in its own graph, even if they belong to another
    # function.
    return tuple(map(tf.identity, values))


def scan(
    step: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]],
    initial_state: Tensors,
    inputs: Tensors,
    widths: Sequence[int],
    reverse: bool = False,
) -> Tensors:
    """Runs a loop over time and returns all of its outputs.

    Args:
      step: `(state, inputs at one time) -> (state, outputs at that time)`.
      initial_state: Tensors before the first step.
      inputs: `[time, n, ...]` each.
      widths: The last dimension of every output.
      reverse: Whether to run backward in time; outputs stay in the order of time.

    Returns:
      `[time, n, width]` for every output.
    """
    num_steps = tf.shape(inputs[0])[0]
    dtype, batch_size = inputs[0].dtype, inputs[0].shape[1]
    readers = tuple(
        tf.TensorArray(
            x.dtype, num_steps, element_shape=x.shape[1:], clear_after_read=False
        ).unstack(x)
        for x in inputs
    )
    writers = tuple(
        tf.TensorArray(dtype, num_steps, element_shape=[batch_size, width])
        for width in widths
    )

    def body(count, state, writers):
        time = num_steps - 1 - count if reverse else count
        state, outputs = step(state, tuple(array.read(time) for array in readers))
        written = tuple(
            array.write(time, output)
            for array, output in zip(writers, outputs, strict=True)
        )
        return count + 1, state, written

    _, _, writers = tf.while_loop(
        lambda count, *_: count < num_steps,
        body,
        (tf.constant(0), initial_state, writers),
        maximum_iterations=num_steps,
    )
    return tuple(array.stack() for array in writers)


def with_usual_sizes(
    layer: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor
) -> tf.Tensor:
    """Returns `layer(x)`, computed with zeros up to usual numbers of rows and steps.

    XLA compiles a loop anew for every shape. Clients' last batches may have any number
    of rows: usual numbers are 4, 8, and the multiples of 4 with two significant bits:
    12, 16, 24, 32, 48, ... If the number of steps is not known, batches may have any: usual
    are the numbers with three significant bits: 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ...

    Args:
      layer: A function whose rows are independent, from `[time, n, in]` to
        `[time, n, out]`; outputs do not depend on later steps.
      x: Its argument.
    """
    num_steps, num_rows = x.shape[0], x.shape[1]
    sizes, more_steps = [-1, num_rows], 0
    if num_steps is None:
        sizes[0] = tf.shape(x)[0]
        more_steps = _usual(_USUAL_STEPS, sizes[0]) - sizes[0]
    if num_rows is None:
        sizes[1] = tf.shape(x)[1]
        more_rows = _usual(_USUAL_ROWS, sizes[1]) - sizes[1]
    else:
        more_rows = min(n for n in _USUAL_ROWS if n >= num_rows) - num_rows
        if more_rows == 0 and num_steps is not None:
            return layer(x)
    outputs = layer(tf.pad(x, [[0, more_steps], [0, more_rows], [0, 0]]))
    first = tf.slice(outputs, [0, 0, 0], [*sizes, -1])
    first.set_shape([num_steps, num_rows, outputs.shape[2]])
    return first


def _usual(numbers: Sequence[int], number: tf.Tensor) -> tf.Tensor:
    """Returns the least of ascending numbers that is at least a number, int32 []."""
    return tf.gather(numbers, tf.searchsorted(numbers, [number]))[0]


def product(x: tf.Tensor, kernel: tf.Tensor, transpose: bool = False) -> tf.Tensor:
    """Returns `x @ kernel` or `x @ kernel^T`, as one matrix product for all times.

    Args:
      x: float `[time, n, in]`; time and n may be unknown.
      kernel: float `[in, out]`, or `[out, in]` with `transpose`.
      transpose: Whether to transpose the kernel.

    Returns:
      float `[time, n, out]`.
    """
    size, width = reversed(kernel.shape) if transpose else kernel.shape
    flat = multiplier(kernel, transpose)(tf.reshape(x, [-1, size]))
    return tf.reshape(flat, [*tf.unstack(tf.shape(x)[:2]), width])


def multiplier(
    kernel: tf.Tensor, transpose: bool = False
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the function from `x` to `x @ kernel` or `x @ kernel^T`.

    Prepares the kernel, so call it before a loop and the function in the loop.

    Args:
      kernel: float `[in, out]`, or `[out, in]` with `transpose`.
      transpose: Whether to transpose the kernel.

    Returns:
      A function from float `[n, in]` to float `[n, out]`.
    """
    # On a CPU, a product of a few rows with a transposed matrix can take several times
    # as long as with a plain one.
    plain = tf.transpose(kernel) if transpose else kernel
    width, prepared = plain.shape[1], _padded(plain)
    return lambda x: _first_columns(tf.matmul(x, prepared), width)


def outer_products(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns the sum of `x^T y` over time and n, `[in, out]`.

    Args:
      x: float `[time, n, in]`.
      y: float `[time, n, out]`.
    """
    width = y.shape[-1]
    products = tf.matmul(
        tf.reshape(x, [-1, x.shape[-1]]),
        _padded(tf.reshape(y, [-1, width])),
        transpose_a=True,
    )
    return _first_columns(products, width)


def _padded(matrix: tf.Tensor) -> tf.Tensor:
    """Returns `matrix` with columns of zeros if its width is bad for a CPU's caches.

    If a row's length is a multiple of a large power of two, the entries of a column
    fall into the same few cache sets, and a product takes up to twice as long.
    """
    if matrix.shape[1] % _BAD_WIDTH:
        return matrix
    return tf.pad(matrix, [[0, 0], [0, _NUM_PADDING]])


def _first_columns(matrix: tf.Tensor, width: int) -> tf.Tensor:
    # On a CPU, the gradient of `matrix[:, :width]` takes five times as long.
    whole = matrix.shape[1] == width
    return matrix if whole else tf.slice(matrix, [0, 0], [-1, width])


def delayed(x: tf.Tensor) -> tf.Tensor:
    """Returns `x` shifted one step later in time, with zeros at the first."""
    return tf.concat([tf.zeros_like(x[:1]), x[:-1]], axis=0)


def advanced(x: tf.Tensor) -> tf.Tensor:
    """Returns `x` shifted one step earlier in time, with zeros at the last."""
    return tf.concat([x[1:], tf.zeros_like(x[:1])], axis=0)
