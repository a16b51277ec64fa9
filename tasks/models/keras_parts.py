"""A Keras model that is a chain of layers, divided into models of one layer each.

Algorithms that need features, or share only a part of a model, take models made of
blocks (`tff_algos.models.BlockModel`).
"""

import itertools
from collections.abc import Sequence
from typing import Any

import tf_keras


def divide(keras_model: tf_keras.Model) -> list[tf_keras.Model] | None:
    """Returns a model's parts, in order; None if it is not a chain of layers.

    Each part has one layer with weights, and its copy has the model's values. Layers
    without weights belong to the part before them, those in front to the first part. A
    part does not end where Keras passes on a mask.

    Args:
      keras_model: A model with weights, which stays as it is.
    """
    if _layers(keras_model) is None:
        return None
    copy = tf_keras.models.clone_model(keras_model)
    copy.set_weights(keras_model.get_weights())
    groups = _groups(_layers(copy))
    # Before the layers become parts of other models, and so have several inputs.
    inputs = [_input(group[0]) for group in groups]
    return [_joined(group, x) for group, x in zip(groups, inputs, strict=True)]


def at_dropout(
    part: tf_keras.Model,
) -> list[tf_keras.Model | tf_keras.layers.Dropout]:
    """Returns a part's dropout layers, and what is between them, in order.

    Dropout with a `noise_shape`, of what Keras masks, or called with `training`, stays
    where it is.

    Args:
      part: Of `divide`.
    """
    layers = (x for x in part.layers if not isinstance(x, tf_keras.layers.InputLayer))
    found: list[tf_keras.Model | tf_keras.layers.Dropout] = []
    for is_dropout, between in itertools.groupby(layers, _is_plain_dropout):
        run = list(between)
        found += run if is_dropout else [_joined(run, _input(run[0]))]
    return found


def _is_plain_dropout(layer: tf_keras.layers.Layer) -> bool:
    return (
        type(layer) is tf_keras.layers.Dropout
        and layer.noise_shape is None
        and layer.rate < 1
        and not _is_masked(layer)
        and not _arguments(layer)
    )


def _joined(layers: Sequence[tf_keras.layers.Layer], x: Any) -> tf_keras.Model:
    """Returns the model of layers that are called one on the other, the first on `x`."""
    inputs = tf_keras.Input(x.shape[1:], dtype=x.dtype)
    if not any(map(_arguments, layers)):
        return tf_keras.Sequential([inputs, *layers])
    outputs = inputs
    for layer in layers:
        outputs = layer(outputs, **_arguments(layer))
    return tf_keras.Model(inputs, outputs)


def _arguments(layer: tf_keras.layers.Layer) -> dict[str, Any]:
    """Returns the arguments by name with which a layer is called."""
    given = layer.inbound_nodes[0].call_kwargs
    return {name: value for name, value in given.items() if value is not None}


def _layers(keras_model: tf_keras.Model) -> list[tf_keras.layers.Layer] | None:
    """Returns a chain's layers; None if the model is no chain.

    Layers of a chain are called with their input alone, or also with `training`.
    """
    # A class of the user's may have a `call` of its own.
    if type(keras_model).__module__.partition(".")[0] != "tf_keras":
        return None
    layers = [
        each
        for each in keras_model.layers
        if not isinstance(each, tf_keras.layers.InputLayer)
    ]
    expected = keras_model.input
    for layer in layers:
        # One that is called twice is in two places.
        if len(layer.inbound_nodes) != 1 or _input(layer) is not expected:
            return None
        others = layer.inbound_nodes[0].call_args[1:]
        if any(each is not None for each in others):
            return None
        if not _arguments(layer).keys() <= {"training"}:
            return None
        expected = layer.inbound_nodes[0].outputs
    return layers if expected is keras_model.output else None


def _input(layer: tf_keras.layers.Layer) -> Any:
    """Returns what a layer is called on; `input` of a model is its own."""
    return layer.inbound_nodes[0].input_tensors


def _is_masked(layer: tf_keras.layers.Layer) -> bool:
    return getattr(_input(layer), "_keras_mask", None) is not None


def _groups(
    layers: Sequence[tf_keras.layers.Layer],
) -> list[list[tf_keras.layers.Layer]]:
    groups = [[]]
    for layer in layers:
        has_weights = any(each.weights for each in groups[-1])
        if layer.weights and has_weights and not _is_masked(layer):
            groups.append([])
        groups[-1].append(layer)
    return groups
