"""Clients that tell their number, as agnostic federated learning wants them."""

import collections
from collections.abc import Sequence

import tensorflow as tf


def numbered(
    datasets: Sequence[tf.data.Dataset], numbers: Sequence[int] | None = None
) -> list[collections.OrderedDict[str, tf.data.Dataset]]:
    """Returns each client's batches with its number (0, 1, ... by default)."""
    if numbers is None:
        numbers = range(len(datasets))
    return [
        collections.OrderedDict(
            examples=dataset,
            client_index=tf.data.Dataset.from_tensors(tf.constant(number)),
        )
        for dataset, number in zip(datasets, numbers, strict=True)
    ]
