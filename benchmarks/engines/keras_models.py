"""The workloads' models from Keras' layers, as most of TFF's users write them."""

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.engines import workloads


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


def _lstm() -> tf.keras.Model:
    return tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(
                workloads.VOCAB_SIZE,
                workloads.EMBEDDING_SIZE,
                input_length=workloads.SEQUENCE_LENGTH,
            ),
            *(
                tf.keras.layers.LSTM(workloads.UNITS, return_sequences=True)
                for _ in range(workloads.NUM_LSTM_LAYERS)
            ),
            tf.keras.layers.Dense(workloads.VOCAB_SIZE),
        ]
    )


def build(workload: workloads.Workload) -> tf.keras.Model:
    """Returns a model with logits `[n, ..., classes]` and random weights."""
    match workload.model:
        case "cnn":
            return _cnn()
        case "lstm":
            return _lstm()
        case "dense":
            return _dense(workload.hidden_units)


def model_fn(inputs: workloads.Inputs) -> tff.learning.models.VariableModel:
    """Returns the model for TFF, as `tff.learning` asks for it."""
    return tff.learning.models.from_keras_model(
        build(inputs.workload),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=tuple(
            tf.TensorSpec([None, *values.shape[2:]], values.dtype)
            for values in (inputs.x, inputs.y)
        ),
    )
