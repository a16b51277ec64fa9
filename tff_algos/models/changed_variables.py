"""Which of a model's variables training changes besides the optimizer's."""

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.execution.variable_functions import Functions


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
        model.forward_pass(batch, training=True)

    traced = tf.function(forward_pass).get_concrete_function(model.input_spec)
    library = traced.graph.as_graph_def().library
    library.function.append(traced.function_def)
    with traced.graph.as_default():  # It knows the functions that are called.
        name = traced.function_def.signature.name
        assigned = Functions(library).written_arguments(name)
    first = len(traced.inputs) - len(traced.captured_inputs)
    handles = {
        id(handle)
        for position, handle in enumerate(traced.captured_inputs, first)
        if position in assigned
    }
    return tuple(
        variable.dtype.is_floating and id(variable.handle) in handles
        for variable in variables
    )
