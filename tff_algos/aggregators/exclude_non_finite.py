"""Excludes clients whose value is not finite, and counts them."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators.mean import MeanFactory
from tff_algos.finite import all_finite, zero_unless


def check_floating_point(value_type: tff.Type) -> None:
    """Raises TypeError if `value_type` has tensors that are not floating point."""
    if not tff.types.is_structure_of_floats(value_type):
        raise TypeError(
            "Expected value_type to be a structure of floating point tensors, "
            f"found {value_type}."
        )


def build_exclude_computation(
    value_type: tff.Type, weight_type: tff.Type
) -> tff.Computation:
    """Builds the computation that replaces a non-finite value and its weight by zeros.

    Returns:
      A computation `(value, weight) -> (value, weight, int32)`; the last result is 1
      if the client is excluded, else 0.

    Raises:
      TypeError: If `value_type` has tensors that are not floating point.
    """
    check_floating_point(value_type)

    @tff.tensorflow.computation(value_type, weight_type)
    @tf.function
    def exclude(value, weight):
        finite = all_finite((value, tf.cast(weight, tf.float64)))
        value, weight = zero_unless(finite, (value, weight))
        return value, weight, tf.cast(tf.logical_not(finite), np.int32)

    return exclude


def weighted_or_mean(
    factory: tff.aggregators.WeightedAggregationFactory | None,
) -> tff.aggregators.WeightedAggregationFactory:
    """Returns `factory`, or a `MeanFactory` if it is None.

    Raises:
      TypeError: If `factory` is not a weighted aggregation factory.
    """
    factory = MeanFactory() if factory is None else factory
    if not isinstance(factory, tff.aggregators.WeightedAggregationFactory):
        raise TypeError(
            "Expected inner to be a tff.aggregators.WeightedAggregationFactory, "
            f"found {type(factory)}. Tip: tff.aggregators.as_weighted_aggregator."
        )
    return factory


class ExcludeNonFiniteFactory(tff.aggregators.WeightedAggregationFactory):
    """Gives clients with NaN or infinity a zero value of weight zero.

    Wraps another weighted factory. The result is the mean over the other clients,
    whereas a plain `tff.aggregators.MeanFactory` returns NaN because NaN * 0 is NaN. If
    every client is excluded, the result is the inner factory's for zero weights (for a
    mean NaN, which TFF's finalizers reject).

    For example, TFF's MimeLite does not sanitize the full gradients, so a single
    diverged client destroys the shared optimizer state; this prevents it:

        tff.learning.algorithms.build_weighted_mime_lite(
            model_fn,
            base_optimizer=tff.learning.optimizers.build_sgdm(0.1, momentum=0.9),
            full_gradient_aggregator=ExcludeNonFiniteFactory(),
        )
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
        """Returns the process for values and weights of the given types.

        Its measurements are `num_non_finite_clients` (int32) and the inner
        process's, under `inner`.

        Raises:
          TypeError: If `value_type` has tensors that are not floating point.
        """
        exclude = build_exclude_computation(value_type, weight_type)
        process = self._inner.create(value_type, weight_type)

        @tff.federated_computation(
            process.next.type_signature.parameter[0],
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_fn(state, value, weight):
            value, weight, excluded = tff.federated_map(exclude, (value, weight))
            output = process.next(state, value, weight)
            measurements = tff.federated_zip(
                collections.OrderedDict(
                    num_non_finite_clients=tff.federated_sum(excluded),
                    inner=output.measurements,
                )
            )
            return tff.templates.MeasuredProcessOutput(
                output.state, output.result, measurements
            )

        return tff.templates.AggregationProcess(process.initialize, next_fn)
