"""The row of a client that remembers weights of its last round: all, or a part."""

import collections
import itertools
from typing import Any

import tensorflow as tf

from tff_algos.models import local_model
from tff_algos.models.block_model import WeightMask
from tff_algos.models.local_model import ModelOrFn, Tensors, Weights


def everything(model: ModelOrFn) -> WeightMask:
    """Returns the weights that training changes.

    These are the trainable ones and those that `local_model.statistics_of` names;
    frozen weights and integers are the server's.
    """
    return WeightMask(
        (True,) * len(local_model.trainable_specs(model)),
        local_model.statistics_of(model),
    )


def specs(model: ModelOrFn, part: WeightMask) -> Any:
    """Returns the specs of a row: whether the client has weights, and the weights.

    `weights` are the trainable weights, `statistics` the non-trainable ones; a row
    without one of them lacks its name.

    Args:
      model: The model.
      part: The weights that the client remembers.
    """
    trainable = _chosen(local_model.trainable_specs(model), part.trainable)
    statistics = _chosen(local_model.non_trainable_specs(model), part.non_trainable)
    return _row(tf.TensorSpec([], tf.bool), trainable, statistics)


def row(own: Weights, part: WeightMask) -> Any:
    """Returns the row of a client that ended its round with the weights `own`."""
    return _row(
        tf.constant(True),
        _chosen(own.trainable, part.trainable),
        _chosen(own.non_trainable, part.non_trainable),
    )


def read(row: Any, server: Weights, part: WeightMask) -> Weights:
    """Returns the row's weights, and `server`'s where the row has none.

    A client in its first round gets all of the server's weights.
    """
    own = Weights(
        _filled(row, "weights", server.trainable, part.trainable),
        _filled(row, "statistics", server.non_trainable, part.non_trainable),
    )
    return tf.nest.map_structure(
        lambda last, first: tf.where(row["seen"], last, first), own, server
    )


def _row(seen: Any, weights: tuple, statistics: tuple) -> Any:
    found = collections.OrderedDict(seen=seen)
    if weights:
        found["weights"] = weights
    if statistics:
        found["statistics"] = statistics
    return found


def _chosen(values: tuple, mask: tuple[bool, ...]) -> tuple:
    return tuple(itertools.compress(values, mask))


def _filled(row: Any, name: str, server: Tensors, mask: tuple[bool, ...]) -> Tensors:
    """Returns the row's values in their places, and the server's in the others."""
    own = iter(row.get(name, ()))
    return tuple(
        next(own) if kept else first for kept, first in zip(mask, server, strict=True)
    )
