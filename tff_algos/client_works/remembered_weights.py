"""The row of a client that remembers weights of its last round: all, or a part."""

import collections
import itertools
from typing import Any

import tensorflow as tf

from tff_algos.models import local_model
from tff_algos.models.block_model import WeightMask
from tff_algos.models.local_model import ModelOrFn, Tensors, Weights


def specs(model: ModelOrFn, part: WeightMask | None = None) -> Any:
    """Returns the specs of a row: whether the client has weights, and the weights.

    `weights` are the trainable weights, `statistics` the non-trainable ones; a row
    without one of them lacks its name.

    Args:
      model: The model.
      part: The weights that the client remembers; None for all.
    """
    trainable = _chosen(local_model.trainable_specs(model), part and part.trainable)
    statistics = local_model.non_trainable_specs(model)
    statistics = _chosen(statistics, part and part.non_trainable)
    return _row(tf.TensorSpec([], tf.bool), trainable, statistics)


def row(own: Weights, part: WeightMask | None = None) -> Any:
    """Returns the row of a client that ended its round with the weights `own`."""
    return _row(
        tf.constant(True),
        _chosen(own.trainable, part and part.trainable),
        _chosen(own.non_trainable, part and part.non_trainable),
    )


def read(row: Any, server: Weights, part: WeightMask | None = None) -> Weights:
    """Returns the row's weights, and `server`'s where the row has none.

    A client in its first round gets all of the server's weights.
    """
    everything = Weights(
        _filled(row, "weights", server.trainable, part and part.trainable),
        _filled(row, "statistics", server.non_trainable, part and part.non_trainable),
    )
    return tf.nest.map_structure(
        lambda own, first: tf.where(row["seen"], own, first), everything, server
    )


def _row(seen: Any, weights: tuple, statistics: tuple) -> Any:
    found = collections.OrderedDict(seen=seen)
    if weights:
        found["weights"] = weights
    if statistics:
        found["statistics"] = statistics
    return found


def _chosen(values: tuple, mask: tuple[bool, ...] | None) -> tuple:
    return values if mask is None else tuple(itertools.compress(values, mask))


def _filled(
    row: Any, name: str, server: Tensors, mask: tuple[bool, ...] | None
) -> Tensors:
    """Returns the row's values in their places, and the server's in the others."""
    own = iter(row.get(name, ()))
    mask = (True,) * len(server) if mask is None else mask
    return tuple(
        next(own) if kept else first for kept, first in zip(mask, server, strict=True)
    )
