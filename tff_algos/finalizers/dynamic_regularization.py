"""FedDyn's server update.

Acar et al., "Federated Learning Based on Dynamic Regularization", 2021, arXiv
2111.04263.
"""

import collections
from typing import Annotated

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.finite import global_norm
from tff_algos.hyperparameters import checked, hparam


@checked
def build_dynamic_regularization_finalizer(
    weights_type: tff.Type,
    *,
    dynamic_regularization: Annotated[float, hparam(low=0)],
    num_clients: Annotated[int, hparam(low=1)],
) -> tff.learning.templates.FinalizerProcess:
    """Builds the finalizer that keeps h, the mean of lambda_k over all N clients.

    With delta the mean model delta of S clients: h <- h + alpha * S/N * delta and
    w <- w - delta - h/alpha. With alpha = 0 it is defined as w <- w - delta, which is
    not the limit, because h/alpha does not vanish.

    A round whose aggregate is not finite is rejected: weights and h stay unchanged.

    Args:
      weights_type: The type of `tff.learning.models.ModelWeights`.
      dynamic_regularization: alpha, loss per squared weight, >= 0.
      num_clients: N, the number of all clients.

    Returns:
      A process whose state is h, like the trainable weights, and whose update is
      `<value=delta, total_weight=S>` of `aggregators.TotalWeightFactory`. Measurements
      are `num_rejected_rounds` (int32, 0 or 1) and `update_norm` (float32, the L2 norm
      of the server's step).

    Raises:
      HyperparameterError: If an argument is out of range.
    """
    trainable_type = weights_type.trainable
    update_type = tff.to_type(
        collections.OrderedDict(value=trainable_type, total_weight=np.float32)
    )

    @tff.tensorflow.computation
    def zeros():
        return tff.types.structure_from_tensor_type_tree(
            lambda tensor: tf.zeros(tensor.shape, tensor.dtype), trainable_type
        )

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(zeros, tff.SERVER)

    @tff.tensorflow.computation(trainable_type, weights_type, update_type)
    @tf.function
    def apply(mean_linear, weights, update):
        def moved(linear, delta):
            share = tf.cast(update["total_weight"], delta.dtype) / num_clients
            return linear + dynamic_regularization * share * delta

        def step(delta, linear):
            if not dynamic_regularization:
                return delta
            return delta + linear / tf.constant(dynamic_regularization, delta.dtype)

        new_linear = tf.nest.map_structure(moved, mean_linear, update["value"])
        steps = tf.nest.map_structure(step, update["value"], new_linear)
        norm = global_norm(steps)
        finite = tf.math.is_finite(norm)

        def accepted(new, old):
            return tf.where(finite, new, old)

        trainable = tf.nest.map_structure(
            lambda weight, by: accepted(weight - by, weight), weights.trainable, steps
        )
        measurements = collections.OrderedDict(
            num_rejected_rounds=tf.cast(tf.logical_not(finite), tf.int32),
            update_norm=tf.cast(norm, tf.float32),
        )
        return (
            tf.nest.map_structure(accepted, new_linear, mean_linear),
            tff.learning.models.ModelWeights(trainable, weights.non_trainable),
            measurements,
        )

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(weights_type, tff.SERVER),
        tff.FederatedType(update_type, tff.SERVER),
    )
    def next_fn(state, weights, update):
        state, weights, measurements = tff.federated_map(
            apply, (state, weights, update)
        )
        return tff.templates.MeasuredProcessOutput(state, weights, measurements)

    return tff.learning.templates.FinalizerProcess(initialize, next_fn)
