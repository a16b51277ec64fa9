"""The mean of clients' update directions, independent of the updates' lengths."""

import collections
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators.exclude_non_finite import (
    build_exclude_computation,
    weighted_or_mean,
)


def squared_norm(value: Any) -> tf.Tensor:
    """Returns the squared L2 norm of a structure of tensors, float64 []."""
    # tf.linalg.global_norm cannot be vectorized over clients.
    return tf.add_n(
        [
            tf.reduce_sum(tf.square(tf.cast(tensor, tf.float64)))
            for tensor in tf.nest.flatten(value)
        ]
    )


class NormalizedMeanFactory(tff.aggregators.WeightedAggregationFactory):
    """Divides every client's update by its norm, then takes the weighted mean.

    FedAvg-n of Hu et al., 2022, arXiv 2006.11489. The norm is the global norm of the
    update. Clients whose update is zero, or has no finite norm, get weight zero.

    Clients normalize their own updates, so the server need not see individual ones:
    `inner` may be a secure sum. However, a client that violates the protocol can send
    an update of any length. If the server may see individual updates,
    `MinNormFactory(epsilon=0.0, normalize=True)` computes the same mean and normalizes
    at the server.
    """

    def __init__(
        self, inner: tff.aggregators.WeightedAggregationFactory | None = None
    ) -> None:
        """Wraps `inner`, a `MeanFactory` by default.

        Raises:
          TypeError: If `inner` is not a weighted aggregation factory.
        """
        self._inner = weighted_or_mean(inner)

    def create(
        self, value_type: tff.Type, weight_type: tff.Type
    ) -> tff.templates.AggregationProcess:
        """Returns the process for updates and weights of the given types.

        Its state is the inner process's. Its measurements are
        `num_non_finite_clients` (int32, whose update or its norm is not finite) and
        `num_zero_updates` (int32), and the inner process's, under `inner`.

        Raises:
          TypeError: If `value_type` has tensors that are not floating point.
        """
        exclude = build_exclude_computation(value_type, weight_type)
        process = self._inner.create(value_type, weight_type)

        @tff.tensorflow.computation(value_type, weight_type)
        @tf.function
        def normalize(value, weight):
            norm = tf.sqrt(squared_norm(value))
            zero = tf.equal(norm, 0)
            too_long = tf.math.is_inf(norm)
            safe = tf.where(zero, tf.ones_like(norm), norm)
            value = tf.nest.map_structure(
                lambda t: tf.cast(tf.cast(t, tf.float64) / safe, t.dtype), value
            )
            counts = [
                tf.cast(each & (weight > 0), tf.int32) for each in (zero, too_long)
            ]
            weight = tf.where(zero | too_long, tf.zeros_like(weight), weight)
            return value, weight, *counts

        @tff.tensorflow.computation(np.int32, np.int32)
        def add(first, second):
            return first + second

        @tff.federated_computation(
            process.next.type_signature.parameter[0],
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_fn(state, value, weight):
            value, weight, excluded = tff.federated_map(exclude, (value, weight))
            value, weight, zero, too_long = tff.federated_map(
                normalize, (value, weight)
            )
            output = process.next(state, value, weight)
            measurements = tff.federated_zip(
                collections.OrderedDict(
                    num_non_finite_clients=tff.federated_map(
                        add, tff.federated_sum((excluded, too_long))
                    ),
                    num_zero_updates=tff.federated_sum(zero),
                    inner=output.measurements,
                )
            )
            return tff.templates.MeasuredProcessOutput(
                output.state, output.result, measurements
            )

        return tff.templates.AggregationProcess(process.initialize, next_fn)
