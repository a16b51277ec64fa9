"""A user's Keras model as a classifier whose metrics are those of the tasks."""

import functools
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tf_keras
from tensorflow.python.framework import func_graph
from tensorflow.python.framework.errors import InaccessibleTensorError
from tensorflow_federated.python.learning.models.functional import (
    KerasFunctionalModelError,
)

from tasks.models import blocks, keras_parts, metrics
from tff_algos import messages
from tff_algos.models import block_model, graph_prediction
from tff_algos.models.block_model import Block, BlockModel

# TFF averages no others.
_DTYPES = ("float16", "float32", "float64")
_FLOAT32 = block_model.layer(functools.partial(tf.cast, dtype=tf.float32))
_SIGMOIDS = (tf_keras.activations.sigmoid, tf.nn.sigmoid)
# Makes a model's layers again.
_Clone = Callable[[tf_keras.Model], tf_keras.Model]


class KerasModelError(ValueError):
    """A Keras model cannot be the classifier; the message says why, in one line."""


def build(
    keras_model: tf_keras.Model, example_shape: Sequence[int], num_classes: int
) -> tff.learning.models.FunctionalModel:
    """Returns a functional model that starts from a Keras model's weights.

    Args:
      keras_model: Takes float32 `[n, *example_shape]` and returns logits
        `[n, num_classes]`. It stays as it is. The weights of layers that are not
        trainable are not trained.
      example_shape: The shape of one example.
      num_classes: Number of classes.

    Returns:
      A model with `x` float32 `[None, *example_shape]`, `y` int32 `[None]`, and the
      loss and the metrics of `metrics.Classification`. Its weights are in the order of
      Keras' `trainable_weights` and `non_trainable_weights`. If the Keras model is a
      chain of layers, it is a `BlockModel` of the parts of `keras_parts.divide`. The
      masks of the dropout layers that `keras_parts.at_dropout` finds are then functions
      of weights and batch, as those of the tasks' models; Keras draws all others.

    Raises:
      KerasModelError: If the model takes or returns something else, has nothing to train
        or layers that change weights without gradients, such as batch normalization,
        computes in mixed precision, has regularizers, constraints or losses of its own,
        or is not made of layers (sequential or functional) that can be made again.
    """
    _check(keras_model, example_shape, num_classes)
    classification = metrics.Classification()
    input_spec = (
        tf.TensorSpec([None, *example_shape], tf.float32),
        tf.TensorSpec([None], tf.int32),
    )
    shared = {
        "loss_fn": classification.loss,
        "metrics_fns": classification.metrics_fns(),
        "input_spec": input_spec,
    }
    try:
        try:
            functional = _functional(keras_model, _clone, shared)
            _check_outputs(keras_model, functional)
        except InaccessibleTensorError:
            functional = _functional(keras_model, tf_keras.models.clone_model, shared)
            _check_outputs(keras_model, functional)
    except KerasModelError:
        raise
    # Keras cannot clone layers of one's own that do not say how to make them again, nor
    # any with functions that it cannot name.
    except (
        KerasFunctionalModelError,
        NotImplementedError,
        TypeError,
        ValueError,
    ) as error:
        raise KerasModelError(_why_not_cloned(keras_model, error)) from error
    return functional


def _functional(
    keras_model: tf_keras.Model, clone: _Clone, shared: Mapping[str, Any]
) -> tff.learning.models.FunctionalModel:
    with graph_prediction.keras_classes_kept():
        parts = keras_parts.divide(keras_model)
        if parts is None:
            return _whole(keras_model, clone, **shared)
        return _of_parts(parts, clone, **shared)


def _whole(
    keras_model: tf_keras.Model, clone: _Clone, **shared: Any
) -> tff.learning.models.FunctionalModel:
    predict = _prediction(keras_model, clone)

    @tf.function(autograph=False)
    def predict_on_batch(weights, x, training=True):
        return tf.cast(predict(weights, x, training), tf.float32)

    return tff.learning.models.FunctionalModel(
        initial_weights=_values(keras_model),
        predict_on_batch_fn=predict_on_batch,
        **shared,
    )


def _of_parts(
    parts: Sequence[tf_keras.Model], clone: _Clone, **shared: Any
) -> BlockModel:
    salts = itertools.count(1)

    def block(layers: tf_keras.Model | tf_keras.layers.Dropout) -> Block:
        if isinstance(layers, tf_keras.layers.Dropout):
            return blocks.dropout(layers.rate, next(salts))
        return _block(layers, clone)

    # All of them first: what is made in a graph changes Keras' classes.
    pieces = [keras_parts.at_dropout(part) for part in parts]
    *first, last = (block_model.chain(*map(block, each)) for each in pieces)
    all_blocks = [*first, block_model.chain(last, _FLOAT32)]
    return BlockModel(
        all_blocks, dropout_seed_fn=blocks.dropout_seed(all_blocks), **shared
    )


def _block(part: tf_keras.Model, clone: _Clone) -> Block:
    convert = _prediction if part.weights else _without_weights
    predict = convert(part, clone)

    def apply(trainable, non_trainable, x, mode):
        output = predict((trainable, non_trainable), x, mode.batch_statistics)
        return output, non_trainable

    trainable, non_trainable = _values(part)
    return Block(
        apply=apply,
        trainable=trainable,
        non_trainable=non_trainable,
        frozen=(True,) * len(non_trainable),
    )


def _values(
    keras_model: tf_keras.Model,
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Returns the values of a model's trainable and non-trainable weights."""
    trainable, non_trainable = (
        tuple(variable.numpy() for variable in group)
        for group in (
            keras_model.trainable_variables,
            keras_model.non_trainable_variables,
        )
    )
    return trainable, non_trainable


def _prediction(keras_model: tf_keras.Model, clone: _Clone) -> Callable[..., Any]:
    """Returns `(weights, x, training) -> output`, with weights in Keras' order."""
    # The loss is not used.
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = tff.learning.models.functional_model_from_keras(
        functools.partial(clone, keras_model), loss, input_spec=()
    )
    variables = _variables_of_clones(keras_model)

    def predict(weights, x, training):
        # Tracing clones the layers.
        with graph_prediction.keras_classes_kept():
            return model.predict_on_batch(_as_created(weights, variables), x, training)

    return predict


def _without_weights(keras_model: tf_keras.Model, clone: _Clone) -> Callable[..., Any]:
    """As `_prediction`, of a model without weights, which TFF does not convert."""

    # As in TFF, layers are made while a function is traced, so that AutoGraph converts
    # those of users.
    @tf.function
    def call(x, training):
        return clone(keras_model)(x, training=training)

    def predict(weights, x, training):
        del weights
        with graph_prediction.keras_classes_kept():
            return call(x, training)

    return predict


def _clone(keras_model: tf_keras.Model) -> tf_keras.Model:
    """Makes a model's layers again, with variables from the caller's creator scope.

    In a graph, Keras calls new layers on placeholders. Assertions and other ops that run
    although nothing reads their results would need values for these, so the layers are
    made in a graph that never runs. This does not work for layers that create tensors
    in `__init__` or `build`, such as `Normalization`: the graph of the call cannot use
    these tensors.
    """
    with func_graph.FuncGraph("unused").as_default():
        return tf_keras.models.clone_model(keras_model)


def _why_not_cloned(keras_model: tf_keras.Model, error: Exception) -> str:
    """Returns the message for an error of cloning; names the layer where it can."""
    for layer in _all_layers(keras_model):
        try:
            type(layer).from_config(layer.get_config())
        except TypeError:
            return (
                f"the layer {layer.name} cannot be made again from its configuration: "
                "register its functions by "
                "tf_keras.utils.register_keras_serializable"
            )
        except (NotImplementedError, ValueError):
            break
    return messages.one_line(error)


@attrs.frozen
class _Variable:
    """A variable that a clone of a model creates.

    Attributes:
      created_trainable: Whether its layer creates it to be trained.
      is_frozen: Whether it is among the model's non-trainable weights, as all of a
        frozen layer are.
      index: Its place among the model's trainable or non-trainable weights.
    """

    created_trainable: bool
    is_frozen: bool
    index: int


def _variables_of_clones(keras_model: tf_keras.Model) -> tuple[_Variable, ...]:
    """Returns the variables of a clone, in the order in which it creates them."""
    created = []

    def record(create: Any, **options: Any) -> tf.Variable:
        variable = create(**options)
        created.append((bool(options.get("trainable", True)), variable))
        return variable

    with tf.Graph().as_default(), tf.variable_creator_scope(record):
        clone = tf_keras.models.clone_model(keras_model)
    places = {
        id(variable): (is_frozen, index)
        for is_frozen, group in enumerate(
            (clone.trainable_variables, clone.non_trainable_variables)
        )
        for index, variable in enumerate(group)
    }
    return tuple(_Variable(was, *places[id(each)]) for was, each in created)


def _as_created(
    weights: tuple[Sequence[Any], Sequence[Any]], variables: Sequence[_Variable]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns weights as TFF's clones take them: by how and when layers create them."""
    trained, others = [], []
    for each in variables:
        value = weights[each.is_frozen][each.index]
        (trained if each.created_trainable else others).append(value)
    return tuple(trained), tuple(others)


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
            added = ""
            if what == "takes" and expected[-1:] == (1,) and found == expected[:-1]:
                added = "; features [n, height, width] get an axis of one channel"
            raise KerasModelError(
                f"the model {what} {_shown(found)}, expected {_shown(expected)}{added}"
            )
    if getattr(keras_model.layers[-1], "activation", None) in _SIGMOIDS:
        raise KerasModelError(
            "the model ends in a sigmoid, expected logits: leave out the sigmoid"
        )
    if not keras_model.trainable_variables:
        raise KerasModelError("the model has no weights that are trainable")
    _check_layers(_all_layers(keras_model))


def _check_outputs(
    keras_model: tf_keras.Model, model: tff.learning.models.FunctionalModel
) -> None:
    """Compares the model that rounds train with Keras', on a batch."""
    # In [0, 1), values are valid as pixels and as indices of an embedding.
    shape = (4, *model.input_spec[0].shape[1:])
    x = tf.constant(np.random.default_rng(0).uniform(size=shape), tf.float32)
    with tf.GradientTape() as tape:
        expected = keras_model(x, training=False)
        losses = keras_model.losses
    # Those of frozen layers' weights are constant.
    if losses and any(
        each is not None
        for each in tape.gradient(losses, keras_model.trainable_variables)
    ):
        raise KerasModelError(
            "the model adds losses of its own, expected none: rounds train on the "
            "classification loss alone"
        )
    if _are_probabilities(expected.numpy()):
        raise KerasModelError(
            "the model returns probabilities, expected logits: leave out the softmax"
        )
    predict = graph_prediction.anywhere(model)
    try:
        predict(model.initial_weights, x, True)
        found = predict(model.initial_weights, x, False)
    except InaccessibleTensorError:
        raise
    # Layers may assign to their weights, which are plain tensors here.
    except (AttributeError, TypeError, ValueError, tf.errors.OpError) as error:
        raise KerasModelError(
            "the model's layers cannot be made again with weights that are no variables: "
            f"{messages.one_line(error)}"
        ) from error
    # A model with dropout in evaluation does not agree even with itself.
    if not _agree(found, expected) and _agree(keras_model(x, training=False), expected):
        raise KerasModelError(
            "the model's layers, made again, give other outputs; a sequential model "
            "cannot have the same layer twice (use the functional API)"
        )


def _are_probabilities(outputs: np.ndarray) -> bool:
    return bool((outputs >= 0).all() and np.allclose(outputs.sum(axis=1), 1, atol=1e-3))


def _agree(outputs: tf.Tensor, expected: tf.Tensor) -> bool:
    largest = np.abs(expected).max()
    return np.allclose(outputs, expected, rtol=0, atol=1e-3 * largest, equal_nan=True)


def _all_layers(keras_model: tf_keras.Model) -> list[tf_keras.layers.Layer]:
    """Returns the layers of a model, and of the models and layers inside of it."""
    modules = keras_model.submodules
    return [each for each in modules if isinstance(each, tf_keras.layers.Layer)]


def _check_layers(layers: Sequence[tf_keras.layers.Layer]) -> None:
    for each in layers:
        # A frozen one normalizes by its moving statistics, which then stay as they are.
        is_normalization = isinstance(each, tf_keras.layers.BatchNormalization)
        if is_normalization and each.trainable:
            raise KerasModelError(
                f"the layer {each.name} is a batch normalization, expected layers that "
                "change weights by gradients alone, such as GroupNormalization"
            )
        if each.trainable_variables and (ignored := _ignored(each)):
            raise KerasModelError(
                f"the layer {each.name} has a {ignored}, expected none: rounds train on "
                "the classification loss alone"
            )
        if getattr(each, "stateful", False):
            raise KerasModelError(
                f"the layer {each.name} is stateful, expected layers that remember "
                "nothing from batch to batch"
            )
        if each.trainable_variables and each.variable_dtype not in _DTYPES:
            raise KerasModelError(
                f"the layer {each.name} has weights of {each.variable_dtype}, expected "
                f"one of {', '.join(_DTYPES)}"
            )
        if each.compute_dtype != each.variable_dtype:
            raise KerasModelError(
                f"the layer {each.name} computes in {each.compute_dtype} with weights of "
                f"{each.variable_dtype}, expected a single dtype"
            )


def _ignored(layer: tf_keras.layers.Layer) -> str | None:
    """Returns the first setting of a layer that a functional model does not have."""
    try:
        config = layer.get_config()
    except NotImplementedError:
        # Only layers inside of another, which makes them again, may lack it.
        return None
    return next(
        (
            name
            for name, value in config.items()
            if name.endswith(("_regularizer", "_constraint")) and value is not None
        ),
        None,
    )


def architecture(keras_model: tf_keras.Model) -> str:
    """Returns a model's layers as text: the same for the same layers made again.

    Keras numbers layers as long as a process lives, so their names are replaced.
    """
    layers = [keras_model, *_all_layers(keras_model)]
    numbers = {each.name: f"layer {number}" for number, each in enumerate(layers)}

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                # Kinds of functions may be called as a layer is.
                key: each if key.endswith("_type") else renamed(each)
                for key, each in value.items()
            }
        if isinstance(value, list):
            return [renamed(each) for each in value]
        return numbers.get(value, value) if isinstance(value, str) else value

    return json.dumps(renamed(json.loads(keras_model.to_json())), sort_keys=True)


def _shown(shape: Any) -> str:
    if not isinstance(shape, tuple):
        return "several tensors"
    return f"[{', '.join('n' if size is None else str(size) for size in shape)}]"
