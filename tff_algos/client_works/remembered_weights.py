"""The row of a client that remembers its final weights of its last round."""

import collections
from typing import Any

import tensorflow as tf

from tff_algos.client_works.local_training import LocalUpdate
from tff_algos.models import local_model
from tff_algos.models.local_model import ModelOrFn, Weights


def specs(model: ModelOrFn) -> Any:
    """Returns the specs of a row: whether the client has weights, and the weights.

    `statistics` are the moving statistics of models that have them.
    """
    found = collections.OrderedDict(
        seen=tf.TensorSpec([], tf.bool), weights=local_model.trainable_specs(model)
    )
    statistics = local_model.non_trainable_specs(model)
    return _with_statistics(found, statistics)


def _with_statistics(row: Any, statistics: Any) -> Any:
    if statistics:
        row["statistics"] = statistics
    return row


def row(update: LocalUpdate) -> Any:
    """Returns the row of a client that has trained."""
    own = update.final.weights
    found = collections.OrderedDict(seen=tf.constant(True), weights=own.trainable)
    return _with_statistics(found, own.non_trainable)


def read(row: Any, server: Weights) -> Weights:
    """Returns the row's weights, or `server` in the client's first round."""
    own = Weights(row["weights"], row.get("statistics", ()))
    return tf.nest.map_structure(
        lambda own, first: tf.where(row["seen"], own, first), own, server
    )
