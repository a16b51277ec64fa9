"""Keras' group normalization with this package's gradient.

Constructor, weights and configuration are Keras'. What Keras computes and this layer
does not is refused; nothing is ignored.
"""

from typing import Any

import tensorflow as tf
import tf_keras

from tff_algos import messages
from tff_algos.layers import group_norm


@tf_keras.saving.register_keras_serializable("tff_algos")
class GroupNormalization(tf_keras.layers.GroupNormalization):
    """`tf_keras.layers.GroupNormalization`, trained in half the passes over activations.

    Takes Keras' arguments and has Keras' weights: gamma `[channels]` with `scale`, and
    beta `[channels]` with `center`. Inputs are floats `[n, ..., channels]`; outputs have
    their shape and the layer's compute dtype. With 16-bit floats, means, variances and
    differences from the mean are computed in float32.

    Not supported, and a ValueError: another axis than the last one, and masks.
    """

    def build(self, input_shape: Any) -> None:
        """Makes the weights; ValueError for another axis than the last one of several."""
        rank = tf.TensorShape(input_shape).rank
        if rank is None or rank < 2:
            raise ValueError(
                "tff_algos.layers.GroupNormalization: expected inputs [n, ..., channels], "
                f"found {input_shape}."
            )
        if self.axis not in (-1, rank - 1):
            # Keras wraps lists.
            axis = self.axis if isinstance(self.axis, int) else list(self.axis)
            raise ValueError(
                "tff_algos.layers.GroupNormalization: expected axis=-1, found "
                f"{messages.shown(axis)} of {rank} axes; Keras' layer supports others."
            )
        super().build(input_shape)

    def call(self, inputs: tf.Tensor, mask: Any = None) -> tf.Tensor:
        """Returns the normalized inputs; see the class for shapes and errors."""
        if mask is not None:
            raise ValueError(
                "tff_algos.layers.GroupNormalization: expected mask=None, found a mask "
                "(of an Embedding with mask_zero=True?)."
            )
        x = tf.cast(inputs, tf.float32) if inputs.dtype.size < 4 else inputs
        channels = [x.shape[-1]]
        gamma = (
            tf.cast(self.gamma, x.dtype) if self.scale else tf.ones(channels, x.dtype)
        )
        beta = (
            tf.cast(self.beta, x.dtype) if self.center else tf.zeros(channels, x.dtype)
        )
        outputs = group_norm.group_norm(x, gamma, beta, self.groups, self.epsilon)
        return tf.cast(outputs, inputs.dtype)
