"""Small models for tests of tff.learning, on the examples of `problems`."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tf_keras

from tests.testing import problems


def functional_model() -> tff.learning.models.FunctionalModel:
    """Linear regression with metrics, in float32."""
    model = problems.linear_model(np.float32)
    return tff.learning.models.FunctionalModel(
        initial_weights=model.initial_weights,
        predict_on_batch_fn=model.predict_on_batch,
        loss_fn=model.loss,
        metrics_fns=tff.learning.metrics.create_functional_metric_fns(
            lambda: collections.OrderedDict(
                error=tf_keras.metrics.MeanAbsoluteError(),
                num_examples=tff.learning.metrics.NumExamplesCounter(),
            )
        ),
        input_spec=model.input_spec,
    )


def keras_model() -> tff.learning.models.VariableModel:
    """A network with batch statistics, in float32."""
    model = tf_keras.Sequential(
        [
            tf_keras.layers.InputLayer([problems.NUM_FEATURES]),
            tf_keras.layers.Dense(3, "relu", kernel_initializer=_uniform(3)),
            tf_keras.layers.BatchNormalization(),
            tf_keras.layers.Dense(1, kernel_initializer=_uniform(4)),
            tf_keras.layers.Reshape([]),
        ]
    )
    return tff.learning.models.from_keras_model(
        model,
        loss=mean_squared_error(),
        input_spec=input_spec(),
        metrics=keras_metrics(),
    )


def reconstruction_model() -> tff.learning.models.ReconstructionModel:
    """A network whose last layer stays with the client, in float32."""
    shared = tf_keras.layers.Dense(3, "relu", kernel_initializer=_uniform(3))
    own = tf_keras.layers.Dense(1, kernel_initializer=_uniform(4))
    inputs = tf_keras.Input([problems.NUM_FEATURES])
    outputs = tf_keras.layers.Reshape([])(own(shared(inputs)))
    return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
        tf_keras.Model(inputs, outputs),
        global_layers=[shared],
        local_layers=[own],
        input_spec=input_spec(),
    )


def mean_squared_error() -> tf_keras.losses.Loss:
    """The loss of the Keras models."""
    return tf_keras.losses.MeanSquaredError()


def keras_metrics() -> list[tf_keras.metrics.Metric]:
    """The metrics of the Keras models."""
    return [
        tf_keras.metrics.MeanAbsoluteError(),
        tff.learning.metrics.NumExamplesCounter(),
        tff.learning.metrics.NumBatchesCounter(),
    ]


def input_spec() -> tuple[tf.TensorSpec, tf.TensorSpec]:
    """Of a batch for the Keras models."""
    return (
        tf.TensorSpec([None, problems.NUM_FEATURES], tf.float32),
        tf.TensorSpec([None], tf.float32),
    )


def _uniform(seed: int) -> tf_keras.initializers.Initializer:
    return tf_keras.initializers.RandomUniform(-0.5, 0.5, seed=seed)


def cohorts(*sizes: tuple[int, ...], epochs=2) -> list[list[tf.data.Dataset]]:
    """For each tuple of sizes a list of clients' batches, other clients each time."""
    return [
        [c.batches(4, epochs, np.float32) for c in problems.clients(each, seed)]
        for seed, each in enumerate(sizes)
    ]
