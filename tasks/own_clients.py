"""Reads TFF's clients: all their examples, as arrays."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks.task import TaskError
from tff_algos import messages
from tff_algos.hyperparameters import (
    HyperparameterError,
    MissingHyperparameterError,
    UnusableHyperparameterError,
)

_BATCH_SIZE = 4096


def read(
    client_data: tff.simulation.datasets.ClientData,
    features: str | None,
    label: str | None,
    name: str,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns all examples: features [n, ...], labels [n] and clients' ids [n].

    Args:
      client_data: Clients whose elements are pairs (features, label), or mappings.
      features: The key of the features in a mapping; None if it has one besides the
        label's, and for pairs.
      label: The key of the label in a mapping; None for "label" or "y", and for pairs.
      name: What the data are called in messages.

    Raises:
      TaskError: If a client cannot be read or has no examples, or if elements are no
        examples of one shape.
      HyperparameterError: If elements have no such key, or a key is not named.
    """
    x, y, ids = [], [], []
    for client_id in client_data.client_ids:
        examples = _examples(client_data, client_id, name)
        found = [_pair(batch, features, label, name) for batch in examples]
        if not found:
            raise TaskError(
                f"{name}: client {messages.shown(client_id)} has no examples."
            )
        for batch_x, batch_y in found:
            x.append(batch_x)
            y.append(batch_y)
            ids.append(np.full(len(batch_y), str(client_id)))
    if not x:
        raise TaskError(f"{name} has no clients.")
    for what, values in (("examples", x), ("labels", y)):
        shapes = sorted({each.shape[1:] for each in values})
        if len(shapes) > 1:
            raise TaskError(
                f"{name}: {what} have different shapes, {shapes[0]} and {shapes[1]}."
            )
    return np.concatenate(x), np.concatenate(y), np.concatenate(ids)


def _examples(
    client_data: tff.simulation.datasets.ClientData, client_id: str, name: str
) -> Iterator[Any]:
    """Yields a client's examples in batches.

    Raises:
      TaskError: If they cannot be read.
    """
    dataset = client_data.create_tf_dataset_for_client(client_id)
    try:
        yield from dataset.batch(_BATCH_SIZE).as_numpy_iterator()
    except tf.errors.OpError as error:
        # Elements that do not stack, of several reasons the most likely.
        advice = ""
        if isinstance(error, tf.errors.InvalidArgumentError):
            advice = (
                "; elements must be single examples of one shape (dataset.unbatch() of "
                "batches)"
            )
        raise TaskError(
            f"{name}: client {messages.shown(client_id)} cannot be read{advice}: "
            f"{messages.one_line(error)}"
        ) from error


def _pair(
    batch: Any, features: str | None, label: str | None, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the features and the labels of a batch of a ClientData."""
    if isinstance(batch, tuple) and len(batch) == 2:
        for argument, key in (("features", features), ("label", label)):
            if key is not None:
                raise UnusableHyperparameterError(
                    argument, key, "with elements that are pairs (features, label)"
                )
        return _arrays(*batch, name)
    if not isinstance(batch, Mapping):
        raise TaskError(
            f"{name}: an element is a {type(batch).__name__}, expected a pair "
            "(features, label) or a mapping."
        )
    label = label or next((key for key in ("label", "y") if key in batch), None)
    others = [key for key in batch if key != label]
    if features is None and len(others) == 1:
        features = others[0]
    for argument, key, keys in (
        ("label", label, batch),
        ("features", features, others),
    ):
        choices = f"one of the keys of {name}: {', '.join(keys)}"
        if key is None:
            raise MissingHyperparameterError(argument, f"expected {choices}")
        if key not in keys:
            raise HyperparameterError(argument, key, choices)
    return _arrays(batch[features], batch[label], name)


def _arrays(features: Any, labels: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    for what, found in (("features", features), ("labels", labels)):
        if not isinstance(found, np.ndarray):
            raise TaskError(
                f"{name}: the {what} of an element are a {type(found).__name__}, "
                "expected one tensor."
            )
    return features, labels
