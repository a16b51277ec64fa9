"""The workloads' models from Keras' layers, as most of TFF's users write them."""

from tff_algos import compat  # noqa: F401  # isort: skip

import functools

import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.engines import tf_models, workloads
from tff_algos import layers


def _cnn() -> tf.keras.Model:
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input(workloads.IMAGE_SHAPE),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.Conv2D(64, 3, activation="relu"),
            tf.keras.layers.MaxPool2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(workloads.NUM_IMAGE_CLASSES),
        ]
    )


def _dense(hidden_units: int) -> tf.keras.Model:
    hidden = [tf.keras.layers.Dense(hidden_units, activation="relu")]
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input((workloads.NUM_FEATURES,)),
            *(hidden if hidden_units else ()),
            tf.keras.layers.Dense(workloads.NUM_DIGITS),
        ]
    )


def _lstm(layer: type[tf.keras.layers.Layer]) -> tf.keras.Model:
    return tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(
                workloads.VOCAB_SIZE,
                workloads.EMBEDDING_SIZE,
                input_length=workloads.SEQUENCE_LENGTH,
            ),
            *(
                layer(workloads.UNITS, return_sequences=True)
                for _ in range(workloads.NUM_LSTM_LAYERS)
            ),
            tf.keras.layers.Dense(workloads.VOCAB_SIZE),
        ]
    )


def _resnet(norm: type[tf.keras.layers.Layer]) -> tf.keras.Model:
    conv = functools.partial(_normalized_conv, norm)
    image = x = tf.keras.layers.Input(workloads.COLOR_IMAGE_SHAPE)
    x = tf.keras.layers.ReLU()(conv(x, workloads.RESNET_CHANNELS[0]))
    for channels in workloads.RESNET_CHANNELS:
        for _ in range(workloads.RESNET_UNITS):
            strides = channels // x.shape[-1]
            body = tf.keras.layers.ReLU()(conv(x, channels, strides))
            body = conv(body, channels)
            if strides > 1:
                x = tf.keras.layers.Lambda(tf_models.shortcut)(x)
            x = tf.keras.layers.ReLU()(tf.keras.layers.Add()([body, x]))
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    logits = tf.keras.layers.Dense(workloads.NUM_COLOR_CLASSES)(x)
    return tf.keras.Model(image, logits)


def _normalized_conv(
    norm: type[tf.keras.layers.Layer], x, channels: int, strides: int = 1
):
    if strides > 1:
        # Not "same", which centers windows at odd pixels.
        x = tf.keras.layers.ZeroPadding2D()(x)
    padding = "same" if strides == 1 else "valid"
    x = tf.keras.layers.Conv2D(channels, 3, strides, padding, use_bias=False)(x)
    return norm(workloads.NUM_GROUPS, epsilon=workloads.NORM_EPSILON)(x)


class _Embedding(tf.keras.layers.Layer):
    """The sum of the characters' and their positions' vectors."""

    def build(self, input_shape):
        sizes = (workloads.VOCAB_SIZE, workloads.CONTEXT_LENGTH)
        self._characters, self._positions = (
            self.add_weight(shape=(size, workloads.WIDTH)) for size in sizes
        )

    def call(self, x):
        return tf.gather(self._characters, x) + self._positions


def _layer_norm(x):
    return tf.keras.layers.LayerNormalization(epsilon=workloads.NORM_EPSILON)(x)


def _transformer() -> tf.keras.Model:
    characters = tf.keras.layers.Input((workloads.CONTEXT_LENGTH,), dtype=tf.int32)
    x = _Embedding()(characters)
    for _ in range(workloads.NUM_TRANSFORMER_LAYERS):
        attention = tf.keras.layers.MultiHeadAttention(
            workloads.NUM_HEADS, workloads.HEAD_SIZE
        )
        normalized = _layer_norm(x)
        x += attention(normalized, normalized, use_causal_mask=True)
        hidden = tf.keras.layers.Dense(workloads.HIDDEN_WIDTH, activation="relu")
        x += tf.keras.layers.Dense(workloads.WIDTH)(hidden(_layer_norm(x)))
    logits = tf.keras.layers.Dense(workloads.VOCAB_SIZE)(_layer_norm(x))
    return tf.keras.Model(characters, logits)


def build(workload: workloads.Workload, own_layers: bool = False) -> tf.keras.Model:
    """Returns a model with logits `[n, ..., classes]` and random weights.

    Args:
      workload: The workload.
      own_layers: Whether LSTM and group normalization are those of `tff_algos.layers`,
        not Keras'.
    """
    source = layers if own_layers else tf.keras.layers
    match workload.model:
        case "cnn":
            return _cnn()
        case "lstm":
            return _lstm(source.LSTM)
        case "dense":
            return _dense(workload.hidden_units)
        case "resnet":
            return _resnet(source.GroupNormalization)
        case "transformer":
            return _transformer()


def model_fn(
    inputs: workloads.Inputs, own_layers: bool = False
) -> tff.learning.models.VariableModel:
    """Returns the model for TFF, as `tff.learning` asks for it; see `build`."""
    return tff.learning.models.from_keras_model(
        build(inputs.workload, own_layers),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=tf_models.input_spec(inputs),
    )
