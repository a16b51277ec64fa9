"""Gathers clients' values as rows, for aggregates that are not sums."""

from contextlib import nullcontext

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import sent_marks


def check_known_shapes(value_type: tff.Type) -> None:
    """Raises `TypeError` for tensors of unknown shape and for what is no tensor."""
    if not tff.types.is_structure_of_tensors(value_type) or not all(
        tff.types.is_shape_fully_defined(tensor.shape)
        for tensor in _tensor_types(value_type)
    ):
        raise TypeError(
            "Expected value_type to be a structure of tensors of known shape, found "
            f"{value_type}."
        )


def build_gather_computation(
    value_type: tff.Type, *, is_sent: bool = True
) -> tff.Computation:
    """Builds `({value}@CLIENTS -> rows@SERVER)`; see `GatherFactory`.

    Args:
      value_type: The type of a client's value.
      is_sent: Whether clients of a deployment would send the values for this; if not,
        they do not count as communication.

    Raises:
      TypeError: If `value_type` has tensors of unknown shape or non-tensors.
    """
    check_known_shapes(value_type)
    # Gives anonymous structs, which have no Python container, a container.
    value_type = tff.to_type(
        tff.types.structure_from_tensor_type_tree(lambda tensor: tensor, value_type)
    )
    rows_type = tff.types.tensorflow_to_type(
        tff.types.structure_from_tensor_type_tree(
            lambda tensor: tf.TensorSpec([None, *tensor.shape], tensor.dtype),
            value_type,
        )
    )

    @tff.tensorflow.computation
    def no_rows():
        return tff.types.structure_from_tensor_type_tree(
            lambda tensor: tf.zeros([0, *tensor.shape], tensor.dtype), value_type
        )

    # Kept this simple so that a runtime can recognize that it only appends a row.
    @tff.tensorflow.computation(rows_type, value_type)
    def append(rows, value):
        with nullcontext() if is_sent else sent_marks.not_sent():
            return tf.nest.map_structure(
                lambda old, new: tf.concat([old, tf.expand_dims(new, 0)], 0),
                rows,
                value,
            )

    @tff.tensorflow.computation(rows_type, rows_type)
    def merge(first, second):
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), first, second)

    @tff.tensorflow.computation(rows_type)
    def report(rows):
        return rows

    @tff.federated_computation(tff.FederatedType(value_type, tff.CLIENTS))
    def gather(value):
        return tff.federated_aggregate(value, no_rows(), append, merge, report)

    return gather


def _tensor_types(value_type: tff.Type) -> list[tff.TensorType]:
    found = []
    tff.types.structure_from_tensor_type_tree(found.append, value_type)
    return found


class GatherFactory(tff.aggregators.UnweightedAggregationFactory):
    """Stacks clients' values along a new first axis, in the order of the clients.

    The server sees individual clients' values: incompatible with secure aggregation and
    with privacy mechanisms that require sums.

    A value may be any structure of tensors. To identify rows, gather
    `<client_id, value>`; to get weights, gather `<weight, value>`.
    """

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        """Returns the process for values of the given type.

        Its result has the value's tensors with a leading axis of unknown size, one row
        per client. It has neither state nor measurements.

        Raises:
          TypeError: If `value_type` has tensors of unknown shape or non-tensors.
        """
        gather = build_gather_computation(value_type)

        @tff.federated_computation
        def initialize():
            return tff.federated_value((), tff.SERVER)

        @tff.federated_computation(
            initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
        )
        def next_fn(state, value):
            return tff.templates.MeasuredProcessOutput(
                state, gather(value), tff.federated_value((), tff.SERVER)
            )

        return tff.templates.AggregationProcess(initialize, next_fn)
