"""Aggregates part of clients' values; clients send only that part."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators.exclude_non_finite import weighted_or_mean
from tff_algos.hyperparameters import HyperparameterError


class PartFactory(tff.aggregators.WeightedAggregationFactory):
    """Aggregates some tensors of clients' values; the others are zeros, and not sent.

    For models that clients partly keep to themselves.
    """

    def __init__(
        self,
        is_sent: Sequence[bool],
        inner: tff.aggregators.WeightedAggregationFactory | None = None,
    ) -> None:
        """Wraps `inner`, a `MeanFactory` by default.

        Args:
          is_sent: For each tensor of a value, in the order of its type, whether it is
            aggregated.
          inner: Aggregates a tuple of these tensors.

        Raises:
          HyperparameterError: If `is_sent` is not a list of booleans.
          TypeError: If `inner` is not a weighted aggregation factory.
        """
        self._is_sent = _as_booleans(is_sent)
        self._inner = weighted_or_mean(inner)

    def create(
        self, value_type: tff.Type, weight_type: tff.Type
    ) -> tff.templates.AggregationProcess:
        """Returns the process for values and weights of the given types.

        Its state and measurements are the inner process's; without a tensor that is
        sent, it has none.

        Raises:
          ValueError: If `is_sent` and `value_type` differ in their number of tensors.
        """
        specs = tff.types.type_to_tf_tensor_specs(value_type)
        flat = tf.nest.flatten(specs)
        if len(flat) != len(self._is_sent):
            raise ValueError(
                f"Expected is_sent for {len(flat)} tensors, found {len(self._is_sent)}."
            )
        if not any(self._is_sent):
            return _zeros(specs, value_type, weight_type)
        is_sent = _in_order_of_nest(self._is_sent, specs)

        @tff.tensorflow.computation(value_type)
        def take(value):
            tensors = zip(tf.nest.flatten(value), is_sent, strict=True)
            return tuple(tensor for tensor, sent in tensors if sent)

        part_type = take.type_signature.result
        inner = self._inner.create(part_type, weight_type)

        @tff.tensorflow.computation(part_type)
        def put(part):
            remaining = iter(part)
            tensors = [
                next(remaining) if sent else tf.zeros(spec.shape, spec.dtype)
                for spec, sent in zip(flat, is_sent, strict=True)
            ]
            return tf.nest.pack_sequence_as(specs, tensors)

        @tff.federated_computation(
            inner.initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_fn(state, value, weight):
            output = inner.next(state, tff.federated_map(take, value), weight)
            return tff.templates.MeasuredProcessOutput(
                output.state,
                tff.federated_map(put, output.result),
                output.measurements,
            )

        return tff.templates.AggregationProcess(inner.initialize, next_fn)


def _in_order_of_nest(is_sent: Sequence[bool], specs: object) -> tuple[bool, ...]:
    """Returns `is_sent` as tf.nest orders tensors: those of a mapping by their names."""
    positions = tf.nest.pack_sequence_as(specs, range(len(is_sent)))
    in_order_of_type = tff.structure.flatten(
        tff.structure.from_container([positions], recursive=True)
    )
    by_position = dict(zip(in_order_of_type, is_sent, strict=True))
    return tuple(by_position[position] for position in range(len(is_sent)))


def _as_booleans(is_sent: Sequence[bool]) -> tuple[bool, ...]:
    is_list = isinstance(is_sent, Sequence | np.ndarray)
    if not is_list or not all(isinstance(each, bool | np.bool_) for each in is_sent):
        expected = "True or False for each tensor"
        raise HyperparameterError("is_sent", is_sent, expected)
    return tuple(map(bool, is_sent))


def _zeros(
    specs: object, value_type: tff.Type, weight_type: tff.Type
) -> tff.templates.AggregationProcess:
    """Returns the process whose result is zero, whatever the values."""

    @tff.tensorflow.computation
    def zeros():
        return tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)

    @tff.federated_computation
    def initialize():
        return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(value_type, tff.CLIENTS),
        tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, value, weight):
        del value, weight
        return tff.templates.MeasuredProcessOutput(
            state,
            tff.federated_eval(zeros, tff.SERVER),
            tff.federated_value((), tff.SERVER),
        )

    return tff.templates.AggregationProcess(initialize, next_fn)
