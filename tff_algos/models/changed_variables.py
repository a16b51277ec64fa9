"""Which of a model's non-trainable variables change during training."""

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.framework import auto_control_deps_utils

from tff_algos.autograph import convertible


def changed_in_training(model: tff.learning.models.VariableModel) -> tuple[bool, ...]:
    """Returns for each non-trainable variable whether a training batch may change it.

    True for batch normalization's moving statistics; False for weights of a frozen layer,
    constants, and variables that are not floating point. To be called where the model was
    created.

    Args:
      model: The model.
    """
    variables = tf.nest.flatten(model.non_trainable_variables)
    if not any(variable.dtype.is_floating for variable in variables):
        return (False,) * len(variables)

    def forward_pass(batch):
        convertible(model.forward_pass)(batch, training=True)

    traced = tf.function(forward_pass).get_concrete_function(model.input_spec)
    graph = traced.graph
    only_read = auto_control_deps_utils.get_read_only_resource_input_indices_graph(
        graph
    )
    first = len(graph.inputs) - len(traced.captured_inputs)
    handles = {
        id(handle)
        for position, handle in enumerate(traced.captured_inputs, first)
        if position not in only_read
    }
    return tuple(
        variable.dtype.is_floating and id(variable.handle) in handles
        for variable in variables
    )
