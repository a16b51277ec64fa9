"""The row of a client that remembers its final weights of its last round."""

import collections
from typing import Any

import tensorflow as tf

from tff_algos.client_works.local_training import LocalUpdate
from tff_algos.models import local_model
from tff_algos.models.local_model import ModelOrFn, Tensors


def specs(model: ModelOrFn) -> Any:
    """Returns the specs of a row: whether the client has weights, and the weights."""
    return collections.OrderedDict(
        seen=tf.TensorSpec([], tf.bool), weights=local_model.trainable_specs(model)
    )


def row(update: LocalUpdate) -> Any:
    """Returns the row of a client that has trained."""
    return collections.OrderedDict(
        seen=tf.constant(True), weights=update.final.weights.trainable
    )


def read(row: Any, server: Tensors) -> Tensors:
    """Returns the row's weights, or `server` in the client's first round."""
    return tf.nest.map_structure(
        lambda own, first: tf.where(row["seen"], own, first), row["weights"], server
    )
