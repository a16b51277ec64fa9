"""Models without the graphs that earlier uses of them have left behind.

TensorFlow keeps every graph that it traced of a `tf.function` for as long as the
function lives, and TFF traces a functional model anew for each process that is built of
it. A model that many processes are built of therefore grows by a few megabytes each
time.
"""

import copy

import tensorflow as tf
import tensorflow_federated as tff


def untraced(
    model: tff.learning.models.FunctionalModel,
) -> tff.learning.models.FunctionalModel:
    """Returns a copy of a model whose graphs are its own, and end with it.

    Args:
      model: The model; the copy has the same initial weights and functions.
    """
    result = copy.copy(model)
    for name, value in vars(model).items():
        if isinstance(value, tf.types.experimental.PolymorphicFunction):
            # Keeps the options of `tf.function`, such as `jit_compile`.
            setattr(result, name, value._clone(None))
    return result
