"""TFF's optimizers by name, for weights of any floating-point dtype."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.autograph import convertible
from tff_algos.hyperparameters import instance

# An argument of a builder.
Optimizer = Annotated[
    tff.learning.optimizers.Optimizer,
    instance("an optimizer of TFF, such as tff.learning.optimizers.build_sgdm(0.1)"),
]
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
      decay: Decay factor of the learning rate per period.
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

    TFF stores hyperparameters as float32 tensors. Its SGD with momentum, its AdamW and
    its RMSprop multiply them by gradients or weights without a cast, which fails for
    float64. Other optimizers and float32 weights are passed through: most cast them.
    AutoGraph converts users' optimizers.

    Args:
      optimizer: Any TFF optimizer. If it is one of these three, its `next` raises
        `TypeError` for weights of several dtypes.
    """
    if isinstance(optimizer, _InWeightsDtype):
        return optimizer
    return _InWeightsDtype(optimizer)


def of_some_weights(
    optimizer: tff.learning.optimizers.Optimizer, trained: Sequence[bool]
) -> tff.learning.optimizers.Optimizer:
    """Returns the optimizer that leaves some weights as they are.

    Gradients of zero are not enough: weight decay changes weights without a gradient.

    Args:
      optimizer: Any TFF optimizer.
      trained: For each weight, whether it is trained.
    """
    return _OfSomeWeights(optimizer, trained)


class _Wrapper(tff.learning.optimizers.Optimizer):
    """Has the hyperparameters of the optimizer that it wraps."""

    def __init__(self, optimizer: tff.learning.optimizers.Optimizer) -> None:
        self._optimizer = optimizer

    def get_hparams(self, state: Any) -> Any:
        return self._optimizer.get_hparams(state)

    def set_hparams(self, state: Any, hparams: Any) -> Any:
        return self._optimizer.set_hparams(state, hparams)


class _OfSomeWeights(_Wrapper):
    """Has state for the trained weights alone."""

    def __init__(
        self, optimizer: tff.learning.optimizers.Optimizer, trained: Sequence[bool]
    ) -> None:
        super().__init__(optimizer)
        self._trained = tuple(trained)

    def _chosen(self, structure: Any) -> tuple[Any, ...]:
        flat = tf.nest.flatten(structure)
        return tuple(itertools.compress(flat, self._trained))

    def initialize(self, specs: Any) -> Any:
        return convertible(self._optimizer.initialize)(self._chosen(specs))

    def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
        if not any(self._trained):
            return state, weights
        new_state, updated = convertible(self._optimizer.next)(
            state, self._chosen(weights), self._chosen(gradients)
        )
        new = iter(updated)
        flat = [
            next(new) if trained else weight
            for weight, trained in zip(
                tf.nest.flatten(weights), self._trained, strict=True
            )
        ]
        return new_state, tf.nest.pack_sequence_as(weights, flat)


def _uncast(state: Any) -> str | None:
    """Returns a hyperparameter of a state that TFF does not cast; None without one."""
    if not isinstance(state, Mapping):
        return None
    found = [name for name in ("momentum", "weight_decay") if name in state]
    if {"decay", "preconditioner"} <= state.keys():  # Of TFF's RMSprop.
        found.append("decay")
    return next(
        itertools.chain(found, filter(None, map(_uncast, state.values()))), None
    )


class _InWeightsDtype(_Wrapper):
    """Casts the floating-point state to the weights' dtype during a step."""

    def initialize(self, specs: Any) -> Any:
        return convertible(self._optimizer.initialize)(specs)

    def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
        dtypes = {weight.dtype for weight in tf.nest.flatten(weights)}
        uncast = _uncast(state)
        if dtypes <= {tf.float32} or uncast is None:
            return convertible(self._optimizer.next)(state, weights, gradients)
        if len(dtypes) > 1:
            names = " and ".join(sorted(dtype.name for dtype in dtypes))
            raise TypeError(
                f"TFF's optimizers with {uncast} take weights of one dtype, found "
                f"{names}: use an optimizer without it."
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
