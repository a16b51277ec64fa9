"""What TensorFlow's ops on variables compute, as functions of the variables' values."""

from collections.abc import Callable, Sequence

import attrs
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

_Node = node_def_pb2.NodeDef


@attrs.frozen
class Assignment:
    """An op that assigns to variables.

    Attributes:
      new_values: Maps the node, the values of its variables and its other inputs to the
        variables' new values.
      num_variables: How many of the node's first inputs are variables.
    """

    new_values: Callable[..., Sequence[tf.Tensor]]
    num_variables: int = 1


def _scatter(update: Callable[..., tf.Tensor]) -> Assignment:
    def new_values(node, old, indices, updates):
        del node
        shape = tf.concat([tf.shape(indices), tf.shape(old)[1:]], axis=0)
        rows = tf.broadcast_to(updates, shape)
        return [update(old, tf.expand_dims(indices, -1), rows)]

    return Assignment(new_values)


def _momentum(node, value, accumulator, rate, gradient, momentum):
    accumulator = accumulator * momentum + gradient
    if node.attr["use_nesterov"].b:
        return value - rate * (gradient + momentum * accumulator), accumulator
    return value - rate * accumulator, accumulator


def _keras_momentum(node, value, accumulator, rate, gradient, momentum):
    accumulator = accumulator * momentum - rate * gradient
    if node.attr["use_nesterov"].b:
        return value + momentum * accumulator - rate * gradient, accumulator
    return value + accumulator, accumulator


def _adam(node, value, m, v, beta1_power, beta2_power, rate, beta1, beta2, *others):
    epsilon, gradient = others
    m += (gradient - m) * (1.0 - beta1)
    v += (gradient * gradient - v) * (1.0 - beta2)
    direction = m
    if node.attr["use_nesterov"].b:
        direction = beta1 * m + (1.0 - beta1) * gradient
    scale = rate * tf.sqrt(1.0 - beta2_power) / (1.0 - beta1_power)
    return value - scale * direction / (tf.sqrt(v) + epsilon), m, v


def _adagrad(node, value, accumulator, rate, epsilon, gradient):
    if node.attr["update_slots"].b:
        accumulator += gradient * gradient
    return value - rate * gradient / (tf.sqrt(accumulator) + epsilon), accumulator


def _rms_prop(node, value, square, accumulator, rate, rho, momentum, epsilon, gradient):
    del node
    square += (gradient * gradient - square) * (1.0 - rho)
    accumulator = momentum * accumulator + rate * gradient / tf.sqrt(square + epsilon)
    return value - accumulator, square, accumulator


ASSIGNMENTS = {
    "AssignVariableOp": Assignment(lambda node, old, new: [tf.identity(new)]),
    "AssignAddVariableOp": Assignment(lambda node, old, change: [old + change]),
    "AssignSubVariableOp": Assignment(lambda node, old, change: [old - change]),
    "ResourceApplyAdagradV2": Assignment(_adagrad, 2),
    "ResourceApplyAdam": Assignment(_adam, 3),
    "ResourceApplyGradientDescent": Assignment(
        lambda node, value, rate, gradient: [value - rate * gradient]
    ),
    "ResourceApplyKerasMomentum": Assignment(_keras_momentum, 2),
    "ResourceApplyMomentum": Assignment(_momentum, 2),
    "ResourceApplyRMSProp": Assignment(_rms_prop, 3),
    "ResourceScatterAdd": _scatter(tf.tensor_scatter_nd_add),
    "ResourceScatterSub": _scatter(tf.tensor_scatter_nd_sub),
    "ResourceScatterUpdate": _scatter(tf.tensor_scatter_nd_update),
}


def _gather(node: _Node, value: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    return tf.gather(value, indices, batch_dims=node.attr["batch_dims"].i)


def _shape(node: _Node, value: tf.Tensor) -> tf.Tensor:
    return tf.shape(value, tf.as_dtype(node.attr["out_type"].type))


# By op: maps the node, the variable's value and the other inputs to the output.
READS: dict[str, Callable[..., tf.Tensor]] = {
    "ReadVariableOp": lambda node, value: tf.identity(value),
    "ResourceGather": _gather,
    "ResourceGatherNd": lambda node, value, indices: tf.gather_nd(value, indices),
    "VariableShape": _shape,
}
