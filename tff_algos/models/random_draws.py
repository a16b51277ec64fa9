"""Models that draw random numbers anew in every call, such as Keras' dropout."""

from collections.abc import Mapping

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.autograph import convertible
from tff_algos.random_ops import RANDOM_OPS


def require_none(model: tff.learning.models.FunctionalModel, consequence: str) -> None:
    """Checks that a model's loss is a function of weights and batch in training.

    Args:
      model: The model; its loss is traced.
      consequence: What would be wrong otherwise, as the end of a sentence.

    Raises:
      ValueError: If it is not; the message names the ops that draw.
    """
    ops = set()

    # Functional models from Keras can be called only within a TFF computation.
    @tff.tensorflow.computation
    def loss_of_a_batch():
        weights = tf.nest.map_structure(tf.convert_to_tensor, model.initial_weights)

        @tf.function
        def loss(batch):
            is_mapping = isinstance(batch, Mapping)
            x, y = (batch["x"], batch["y"]) if is_mapping else batch
            output = model.predict_on_batch(weights, x, training=True)
            return convertible(model.loss)(output=output, label=y)

        graph_def = loss.get_concrete_function(model.input_spec).graph.as_graph_def()
        functions = [function.node_def for function in graph_def.library.function]
        ops.update(node.op for nodes in [graph_def.node, *functions] for node in nodes)
        return 0

    del loss_of_a_batch
    if drawn := ops & RANDOM_OPS:
        raise ValueError(
            f"The model draws at random with {', '.join(sorted(drawn))}, so "
            f"{consequence}. Use random ops whose seed is a function of weights and batch "
            "(tf.random.stateless_*)."
        )
