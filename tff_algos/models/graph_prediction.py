"""Predictions of functional models outside of TFF's computations, for files and Keras.

A model of `tff.learning.models.functional_model_from_keras` clones its layers wherever
it is called. Only in a `tf.Graph` can Keras do that without making other variables.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
import tf_keras
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import convert_to_constants
from tensorflow_federated.python.learning.models.functional import (
    KerasFunctionalModelError,
)

Predict = Callable[[Any, Any, bool], Any]


def anywhere(model: tff.learning.models.FunctionalModel) -> Predict:
    """Returns `model.predict_on_batch` as a function that can be called anywhere.

    Its gradients are those of the model.
    """
    in_mode = functools.cache(functools.partial(_graph_function, model))

    @tf.autograph.experimental.do_not_convert
    def predict(weights: Any, x: Any, training: bool) -> Any:
        try:
            return model.predict_on_batch(weights, x, training)
        except KerasFunctionalModelError:
            function, outputs = in_mode(training)
            found = function(*tf.nest.flatten((weights, x)))
            return tf.nest.pack_sequence_as(outputs, tf.nest.flatten(found))

    return predict


def _graph_function(
    model: tff.learning.models.FunctionalModel, training: bool
) -> tuple[tf.types.experimental.ConcreteFunction, Any]:
    """Returns a function of the flat weights and `x`, and the structure it returns."""
    arguments = (model.initial_weights, model.input_spec[0])
    specs = list(map(_spec, tf.nest.flatten(arguments)))
    with tf.init_scope(), keras_classes_kept(), tf.Graph().as_default() as graph:
        inputs = [tf.compat.v1.placeholder(each.dtype, each.shape) for each in specs]
        weights, x = tf.nest.pack_sequence_as(arguments, inputs)
        outputs = model.predict_on_batch(weights, x, training)
    ends = tf.nest.flatten(outputs)
    called = _imported(graph.as_graph_def(), inputs, ends, specs)
    # Calls in imported graphs have no gradients, but the ops that they consist of have.
    inlined = convert_to_constants._run_inline_graph_optimization(
        called, lower_control_flow=False, aggressive_inlining=True
    )
    for node in inlined.node:
        # Inlining may have renamed the ops that these attributes colocate with.
        node.attr.pop("_class", None)
        # Keras' unused placeholders, which cannot be fed, precede outputs.
        node.input[:] = [name for name in node.input if not name.startswith("^")]
    with tf.init_scope():
        function = _imported(inlined, called.inputs, called.outputs, specs)
    return function, outputs


@contextlib.contextmanager
def keras_classes_kept() -> Iterator[None]:
    """Restores the base classes of Keras' layers on exit.

    When a layer is made in a graph, Keras gives its classes the bases for graphs, for
    the whole process, and layers that were made eagerly no longer work.
    """
    bases = {each: each.__bases__ for each in _derived(tf_keras.layers.Layer)}
    try:
        yield
    finally:
        for derived, before in bases.items():
            if derived.__bases__ != before:
                derived.__bases__ = before


def _derived(base: type) -> set[type]:
    found = set(base.__subclasses__())
    return found.union(*map(_derived, found))


def _imported(
    graph_def: graph_pb2.GraphDef,
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    specs: Sequence[tf.TensorSpec],
) -> tf.types.experimental.ConcreteFunction:
    ends = [tensor.name for tensor in outputs]
    starts = [tensor.name for tensor in inputs]
    return tf.compat.v1.wrap_function(
        lambda *values: tf.graph_util.import_graph_def(
            graph_def, dict(zip(starts, values, strict=True)), ends
        ),
        specs,
    )


def _spec(value: Any) -> tf.TensorSpec:
    if isinstance(value, tf.TensorSpec):
        return value
    return tf.TensorSpec.from_tensor(tf.convert_to_tensor(value))
