"""Converts a functional model to a Keras model, to predict, save and export."""

import os
import pathlib
from typing import Any, NoReturn

import tensorflow as tf
import tensorflow_federated as tff
import tf_keras

from tff_algos.models import graph_prediction


class _KerasModel(tf_keras.Model):
    """A functional model whose weights are Keras variables."""

    def __init__(
        self,
        model: tff.learning.models.FunctionalModel,
        weights: tff.learning.models.ModelWeights,
        custom_gradients: bool,
    ) -> None:
        super().__init__()
        self._functional = model
        self._custom_gradients = custom_gradients
        self._predict_on_batch = graph_prediction.anywhere(model)
        self._own_trainable = [
            self._variable(index, value, trainable=True)
            for index, value in enumerate(tf.nest.flatten(weights.trainable))
        ]
        self._own_non_trainable = [
            self._variable(index, value, trainable=False)
            for index, value in enumerate(tf.nest.flatten(weights.non_trainable))
        ]

    def _variable(self, index: int, value: Any, trainable: bool) -> tf.Variable:
        value = tf.convert_to_tensor(value)
        return self.add_weight(
            name=f"{'trainable' if trainable else 'non_trainable'}_{index}",
            shape=value.shape,
            dtype=value.dtype,
            initializer=tf.constant_initializer(value.numpy()),
            trainable=trainable,
        )

    def get_config(self) -> NoReturn:
        """Refuses formats that describe layers, which it does not have.

        Keras saves SavedModels of models whose `get_config` raises this error.
        """
        raise NotImplementedError(
            "This model is a function, not layers that a .keras file could describe: save "
            "it as a SavedModel, model.save('folder'), or its weights, "
            "model.save_weights('model.weights.h5')."
        )

    def save(self, filepath: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Saves it as Keras does, without custom gradients if it was built so."""
        # Only SavedModels have the option; `get_config` refuses the other formats.
        has_format = kwargs.get("save_format") in ("keras", "h5")
        has_suffix = pathlib.Path(filepath).suffix in (".keras", ".h5", ".hdf5")
        if not (self._custom_gradients or has_format or has_suffix):
            # Keras' callbacks pass options of their own.
            options = kwargs.get("options") or tf.saved_model.SaveOptions()
            options.experimental_custom_gradients = False
            kwargs["options"] = options
        super().save(filepath, *args, **kwargs)

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Returns the model's output on a batch."""
        initial = self._functional.initial_weights
        weights = tuple(
            tf.nest.pack_sequence_as(like, [tf.identity(v) for v in variables])
            for like, variables in zip(
                initial, (self._own_trainable, self._own_non_trainable), strict=True
            )
        )
        inputs = tf.nest.map_structure(_as_spec, inputs, self._functional.input_spec[0])
        return self._predict_on_batch(weights, inputs, training)


def _as_spec(value: Any, spec: tf.TensorSpec) -> Any:
    """Casts numbers and bools for a model of floats, as Keras' own layers do."""
    if not spec.dtype.is_floating or value.dtype == spec.dtype:
        return value
    if value.dtype == tf.uint8:
        # The numbers would be right for the layers, and wrong for the weights.
        raise ValueError(
            f"The model takes {spec.dtype.name}, found uint8: tasks divide bytes by 255, "
            "or scale them as the `encoding` of your own data says, so do that first."
        )
    return tf.cast(value, spec.dtype)


def build_keras_model(
    model: tff.learning.models.FunctionalModel,
    weights: tff.learning.models.ModelWeights,
    custom_gradients: bool = True,
) -> tf_keras.Model:
    """Builds a Keras model equivalent to a functional model.

    Training it updates its trainable weights but not moving statistics. A model of floats
    takes whole numbers and bools as well, but no bytes (uint8), which tasks scale.

    Args:
      model: The functional model.
      weights: Its weights, as `get_model_weights` of a learning process returns them.
      custom_gradients: Whether SavedModels of it include the gradients that layers such
        as our LSTM define, without which those cannot be trained after loading.
        TensorFlow cannot save them for a model that comes from a SavedModel itself.

    Returns:
      An uncompiled `tf_keras.Model` (Keras 2, as TFF's), built, with the given weights,
      in order: trainable, then non-trainable.
    """
    keras = _KerasModel(model, weights, custom_gradients)
    # A call builds it and tells Keras its shapes, for `summary` and `save`.
    keras(
        tf.nest.map_structure(
            lambda spec: tf_keras.Input(type_spec=spec), model.input_spec[0]
        )
    )
    return keras
