"""Keras' LSTM and GRU layers with this package's gradients.

Constructors, weights and configurations are Keras'. What Keras computes and these
layers do not is refused; nothing is ignored.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from tff_algos import messages
from tff_algos.layers import gru, lstm

# The arguments of which these layers support one value. Activations are compared as
# Keras writes them in configurations.
_ONLY = {
    "activation": "tanh",
    "recurrent_activation": "sigmoid",
    "recurrent_dropout": 0.0,
    "stateful": False,
    "unroll": False,
}


@tf_keras.saving.register_keras_serializable("tff_algos")
class LSTM(tf_keras.layers.LSTM):
    """`tf_keras.layers.LSTM` whose gradient takes a fraction of the time on a CPU.

    Takes Keras' arguments and has Keras' weights: kernel `[in, 4 * units]`, recurrent
    kernel `[units, 4 * units]` and, with `use_bias`, bias `[4 * units]`. Inputs are
    floats `[n, time, in]`, or `[time, n, in]` with `time_major`. Outputs have the
    layer's compute dtype: `[n, units]`, or `[n, time, units]` with `return_sequences`
    (time first with `time_major`).

    Not supported, and a ValueError: other activations than tanh and sigmoid,
    `recurrent_dropout`, `stateful`, `unroll`, `return_state`; in calls, a mask (so
    embeddings need `mask_zero=False`), an initial state, and ragged inputs.
    """

    @functools.wraps(tf_keras.layers.LSTM.__init__)
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # The final cells have no gradient of their own.
        _check_arguments(self, _ONLY | {"return_state": False})

    @tf.autograph.experimental.do_not_convert
    def call(self, inputs, mask=None, training=None, initial_state=None):
        """Returns the outputs; see the class for shapes and errors."""
        inputs = _checked_inputs(self, inputs, mask, initial_state)
        return _apply(self, lstm.lstm, inputs, [4 * self.units], training)


@tf_keras.saving.register_keras_serializable("tff_algos")
class GRU(tf_keras.layers.GRU):
    """`tf_keras.layers.GRU` whose gradient takes a fraction of the time on a CPU.

    Takes Keras' arguments and has Keras' weights: kernel `[in, 3 * units]`, recurrent
    kernel `[units, 3 * units]` and, with `use_bias`, bias `[2, 3 * units]`. Inputs and
    outputs are as in `LSTM`; with `return_state`, a list of the outputs and the final
    state `[n, units]`.

    Not supported, and a ValueError: `reset_after=False`, and what `LSTM` does not
    support except for `return_state`.
    """

    @functools.wraps(tf_keras.layers.GRU.__init__)
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        _check_arguments(self, _ONLY | {"reset_after": True})

    @tf.autograph.experimental.do_not_convert
    def call(self, inputs, mask=None, training=None, initial_state=None):
        """Returns the outputs; see the class for shapes and errors."""
        inputs = _checked_inputs(self, inputs, mask, initial_state)
        return _apply(self, gru.gru, inputs, [2, 3 * self.units], training)


_Layer = LSTM | GRU


def _check_arguments(layer: _Layer, expected: dict[str, Any]) -> None:
    config = layer.get_config()
    for name, value in expected.items():
        if config[name] != value:
            raise ValueError(
                f"tff_algos.layers.{type(layer).__name__}: expected {name}={value!r}, "
                f"found {messages.shown(config[name])}; Keras' layer supports others."
            )


def _checked_inputs(
    layer: _Layer, inputs: Any, mask: Any, initial_state: Any
) -> tf.Tensor:
    """Returns the sequences, or raises a ValueError for what is not supported."""
    # A model passes Keras tensors of initial states beside the inputs.
    if isinstance(inputs, list):
        inputs, *states = inputs
        initial_state = initial_state or states or None
    reasons = {
        "expected mask=None, found a mask (of an Embedding with mask_zero=True?)": mask,
        "expected initial_state=None, found a state": initial_state,
    }
    if isinstance(inputs, tf.RaggedTensor):
        reasons["expected dense inputs, found a ragged tensor"] = inputs
    for reason, value in reasons.items():
        if value is not None:
            raise ValueError(
                f"tff_algos.layers.{type(layer).__name__}: {reason}; Keras' layer "
                "supports it."
            )
    return inputs


def _apply(
    layer: _Layer,
    function: Callable[..., tf.Tensor],
    inputs: tf.Tensor,
    bias_shape: list[int],
    training: Any,
) -> tf.Tensor | list[tf.Tensor]:
    """Returns the outputs of a layer, in the shape that its arguments ask for."""
    layer.reset_dropout_mask()
    mask = layer.get_dropout_mask_for_cell(inputs, training)
    x = inputs if mask is None else inputs * mask
    x = x if layer.time_major else tf.transpose(x, [1, 0, 2])
    shape = [*x.shape[:2], layer.units]
    x = tf.reverse(x, [0]) if layer.go_backwards else x
    cell = layer.cell
    bias = cell.bias if layer.use_bias else tf.zeros(bias_shape, x.dtype)
    weights = map(tf.convert_to_tensor, (cell.kernel, cell.recurrent_kernel, bias))
    # The loop over time loses the static number of steps.
    outputs = tf.ensure_shape(function(x, *weights), shape)
    last = outputs[-1]
    if not layer.return_sequences:
        found = last
    else:
        found = outputs if layer.time_major else tf.transpose(outputs, [1, 0, 2])
    return [found, last] if layer.return_state else found
