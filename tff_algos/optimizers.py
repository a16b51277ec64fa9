"""TFF's optimizers by name, for weights of any floating-point dtype."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.autograph import convertible

_BUILDERS = {
    "adagrad": tff.learning.optimizers.build_adagrad,
    "adam": tff.learning.optimizers.build_adam,
    "sgd": tff.learning.optimizers.build_sgdm,
    "yogi": tff.learning.optimizers.build_yogi,
}


def build_optimizer(
    name: str,
    learning_rate: float,
    decay: float = 1.0,
    momentum: float = 0.0,
    decay_period: int = 1,
) -> tff.learning.optimizers.Optimizer:
    """Builds the named TFF optimizer.

    Args:
      name: One of "adagrad", "adam", "sgd", "yogi".
      learning_rate: Its learning rate.
      decay: Factor on the learning rate after each period.
      momentum: Heavy-ball momentum of "sgd"; 0 is bit-identical to plain SGD.
      decay_period: Steps per period.
    """
    # TFF's momentum 0.0 would carry an accumulator and round differently.
    kwargs = {"momentum": momentum} if momentum else {}
    optimizer = _BUILDERS[name](learning_rate=learning_rate, **kwargs)
    if decay == 1.0:
        return optimizer
    return tff.learning.optimizers.schedule_learning_rate(
        optimizer,
        lambda step: learning_rate * decay ** tf.cast(step // decay_period, tf.float32),
    )


def build_heavy_ball(
    learning_rate: float, momentum: float
) -> tff.learning.optimizers.Optimizer:
    """Builds heavy-ball SGD, v <- momentum * v + u and w <- w - rate * v.

    Momentum 0 is bit-identical to plain SGD.
    """
    return build_optimizer("sgd", learning_rate, momentum=momentum)


def in_weights_dtype(
    optimizer: tff.learning.optimizers.Optimizer,
) -> tff.learning.optimizers.Optimizer:
    """Returns the optimizer, computing in the dtype of the weights.

    TFF stores hyperparameters as float32 tensors. Its SGD with momentum multiplies them
    by gradients without a cast, which fails for float64. Other optimizers, which cast
    them, and float32 weights are passed through. AutoGraph converts users' optimizers.

    Args:
      optimizer: Any TFF optimizer. If it has momentum, its `next` raises `TypeError` for
        weights of several dtypes.
    """
    if isinstance(optimizer, _InWeightsDtype):
        return optimizer
    return _InWeightsDtype(optimizer)


def _has_momentum(state: Any) -> bool:
    """Returns whether a state is or contains the state of SGD with momentum."""
    if not isinstance(state, Mapping):
        return False
    return "momentum" in state or any(map(_has_momentum, state.values()))


class _InWeightsDtype(tff.learning.optimizers.Optimizer):
    """Casts the floating-point state to the weights' dtype during a step."""

    def __init__(self, optimizer: tff.learning.optimizers.Optimizer) -> None:
        self._optimizer = optimizer

    def initialize(self, specs: Any) -> Any:
        return convertible(self._optimizer.initialize)(specs)

    def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
        dtypes = {weight.dtype for weight in tf.nest.flatten(weights)}
        if dtypes <= {tf.float32} or not _has_momentum(state):
            return convertible(self._optimizer.next)(state, weights, gradients)
        if len(dtypes) > 1:
            names = " and ".join(sorted(dtype.name for dtype in dtypes))
            raise TypeError(
                f"SGD with momentum takes weights of one dtype, found {names}: leave out "
                "the momentum, or use another optimizer."
            )
        (dtype,) = dtypes

        def as_weights(leaf: Any) -> tf.Tensor:
            leaf = tf.convert_to_tensor(leaf)
            return tf.cast(leaf, dtype) if leaf.dtype.is_floating else leaf

        def as_before(new: Any, old: Any) -> tf.Tensor:
            return tf.cast(new, tf.convert_to_tensor(old).dtype)

        new_state, new_weights = convertible(self._optimizer.next)(
            tf.nest.map_structure(as_weights, state), weights, gradients
        )
        return tf.nest.map_structure(as_before, new_state, state), new_weights

    def get_hparams(self, state: Any) -> Any:
        return self._optimizer.get_hparams(state)

    def set_hparams(self, state: Any, hparams: Any) -> Any:
        return self._optimizer.set_hparams(state, hparams)
