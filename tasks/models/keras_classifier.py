"""A user's Keras model as a classifier whose metrics are those of the tasks."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
import tf_keras
from tensorflow_federated.python.learning.models.functional import (
    KerasFunctionalModelError,
)

from tasks.models import metrics
from tff_algos import messages
from tff_algos.models import graph_prediction


class KerasModelError(ValueError):
    """A Keras model cannot be the classifier; the message says why, in one line."""


def build(
    keras_model: tf_keras.Model, example_shape: Sequence[int], num_classes: int
) -> tff.learning.models.FunctionalModel:
    """Returns a functional model that starts from a Keras model's weights.

    Args:
      keras_model: Takes float32 `[n, *example_shape]` and returns logits
        `[n, num_classes]`. It stays as it is. Losses that its layers add are ignored.
      example_shape: The shape of one example.
      num_classes: Number of classes.

    Returns:
      A model with `x` float32 `[None, *example_shape]`, `y` int32 `[None]`, and the
      loss and the metrics of `metrics.Classification`.

    Raises:
      KerasModelError: If the model takes or returns something else, or has layers that
        change weights without gradients, such as batch normalization, or is not made
        of layers (sequential or functional).
    """
    _check(keras_model, example_shape, num_classes)
    classification = metrics.Classification()
    input_spec = (
        tf.TensorSpec([None, *example_shape], tf.float32),
        tf.TensorSpec([None], tf.int32),
    )
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    try:
        with graph_prediction.keras_classes_kept():
            model = tff.learning.models.functional_model_from_keras(
                keras_model, loss, input_spec
            )
    except (KerasFunctionalModelError, ValueError) as error:
        raise KerasModelError(messages.one_line(error)) from error

    @tf.function(autograph=False)
    def predict_on_batch(weights, x, training=True):
        # Tracing clones the layers.
        with graph_prediction.keras_classes_kept():
            return model.predict_on_batch(weights, x, training)

    return tff.learning.models.FunctionalModel(
        initial_weights=model.initial_weights,
        predict_on_batch_fn=predict_on_batch,
        loss_fn=classification.loss,
        metrics_fns=classification.metrics_fns(),
        input_spec=input_spec,
    )


def _check(
    keras_model: tf_keras.Model, example_shape: Sequence[int], num_classes: int
) -> None:
    if not keras_model.built:
        raise KerasModelError("the model has no weights yet: call it on a batch first")
    for what, attribute, expected in (
        ("takes", "input_shape", (None, *example_shape)),
        ("returns", "output_shape", (None, num_classes)),
    ):
        found = getattr(keras_model, attribute, None)
        if found is None:
            raise KerasModelError(
                "the model is not made of layers, expected a sequential or functional one"
            )
        if not isinstance(found, tuple) or (
            not tf.TensorShape(expected).is_compatible_with(found)
        ):
            raise KerasModelError(
                f"the model {what} {_shown(found)}, expected {_shown(expected)}"
            )
    last = keras_model.layers[-1]
    activation = getattr(last, "activation", None)
    if activation is tf_keras.activations.softmax or isinstance(
        last, tf_keras.layers.Softmax
    ):
        raise KerasModelError(
            "the model returns probabilities, expected logits: leave out the softmax"
        )


def _shown(shape: Any) -> str:
    if not isinstance(shape, tuple):
        return "several tensors"
    return f"[{', '.join('n' if size is None else str(size) for size in shape)}]"
