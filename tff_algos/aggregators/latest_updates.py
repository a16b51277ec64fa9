"""The mean over all clients of each client's latest update.

Gu, Huang, Zhang, Huang: "Fast Federated Learning in the Presence of Arbitrary Device
Unavailability", 2021, arXiv 2106.04159 (MIFA).
"""

import collections
from typing import Annotated, Literal, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators.exclude_non_finite import build_exclude_computation
from tff_algos.aggregators.gather import build_gather_computation
from tff_algos.finite import global_norm
from tff_algos.hyperparameters import checked, hparam

# A smaller factor is folded into the rows, before rows divided by it overflow: as
# float32, and as float16.
_LEAST_FACTOR, _LEAST_HALF_FACTOR = 1e-15, 0.1
# Numbers of a table that are converted at a time.
_MOST_CAST = 1 << 23

MeanOver = Literal["all", "seen"]
MemoryDtype = Literal["bfloat16", "float32", "float64"]


class LatestUpdatesState(NamedTuple):
    """The state of `LatestUpdatesFactory`.

    Attributes:
      rows: The value's structure with a leading axis of N: each client's latest update,
        divided by the `factor` of its round; zeros for clients not yet seen.
      seen: bool [N], whether a client has sent an update.
      factor: float64 [], the current scale of the rows: decay to the power of the
        number of rounds since the rows were last rescaled.
    """

    rows: object
    seen: object
    factor: object


class LatestUpdatesFactory(tff.aggregators.WeightedAggregationFactory):
    """Remembers every client's latest update and averages them over all clients.

    Values are `<client_index, update>`, with an int32 index in [0, N). Clients that do
    not take part in a round contribute their latest update, or zero if they have not
    sent any. Weights do not scale the updates: clients with weight zero or an update
    that is not finite are excluded, and their previous update is kept. If no client is
    left, the result is NaN, which learning processes reject.

    The server sees individual, identified clients' updates: incompatible with secure
    aggregation and with privacy mechanisms that require sums. It holds N * d numbers.
    """

    @checked
    def __init__(
        self,
        num_clients: Annotated[int, hparam(low=1, symbol="N")],
        *,
        mean_over: Annotated[MeanOver, hparam()] = "all",
        wait_for_all: Annotated[bool, hparam()] = False,
        decay: Annotated[float, hparam(above=0, high=1)] = 1.0,
        memory_dtype: Annotated[MemoryDtype | None, hparam()] = None,
    ) -> None:
        """Initializes the factory.

        Args:
          num_clients: The number of all clients.
          mean_over: The mean's denominator: "all" N clients, or those "seen" so far.
          wait_for_all: Whether the mean is zero until every client has sent an update.
          decay: Decay factor of remembered updates per round; the client learning
            rate's decay makes old updates shrink like new ones.
          memory_dtype: The dtype of the rows; None for the updates' dtype.

        Raises:
          HyperparameterError: If an argument is invalid.
        """
        self._num_clients = num_clients
        self._mean_over = mean_over
        self._wait_for_all = wait_for_all
        self._decay = decay
        self._row_dtype = None if memory_dtype is None else tf.as_dtype(memory_dtype)

    def create(
        self, value_type: tff.Type, weight_type: tff.Type
    ) -> tff.templates.AggregationProcess:
        """Returns the process for values `<client_index, update>` and their weights.

        Its result is like the update, its state a `LatestUpdatesState`. Measurements:
        `num_non_finite_clients` and `num_seen_clients`, int32.

        Raises:
          TypeError: If `value_type` is anything else, or an update has tensors that
            are not floating point or whose shape is unknown.
        """
        update_type = indexed_update_type(value_type)
        exclude = build_exclude_computation(update_type, weight_type)
        gather = build_gather_computation(
            tff.to_type(
                collections.OrderedDict(
                    client_index=np.int32, weight=weight_type, update=update_type
                )
            )
        )

        @tff.tensorflow.computation
        def no_updates():
            rows = tff.types.structure_from_tensor_type_tree(
                lambda tensor: tf.zeros(
                    [self._num_clients, *tensor.shape],
                    self._row_dtype or tensor.dtype,
                ),
                update_type,
            )
            return LatestUpdatesState(
                rows, tf.fill([self._num_clients], False), tf.constant(1.0, tf.float64)
            )

        @tff.federated_computation
        def initialize():
            return tff.federated_eval(no_updates, tff.SERVER)

        @tff.tensorflow.computation(
            no_updates.type_signature.result, gather.type_signature.result.member
        )
        @tf.function
        def remember(state, gathered):
            return self._remember(state, gathered)

        @tff.federated_computation(
            initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_fn(state, value, weight):
            update, weight, excluded = tff.federated_map(
                exclude, (value.update, weight)
            )
            rows = gather(
                tff.federated_zip(
                    collections.OrderedDict(
                        client_index=value.client_index, weight=weight, update=update
                    )
                )
            )
            state, result, seen = tff.federated_map(remember, (state, rows))
            measurements = tff.federated_zip(
                collections.OrderedDict(
                    num_non_finite_clients=tff.federated_sum(excluded),
                    num_seen_clients=seen,
                )
            )
            return tff.templates.MeasuredProcessOutput(state, result, measurements)

        return tff.templates.AggregationProcess(initialize, next_fn)

    def _remember(self, state: LatestUpdatesState, gathered):
        """Returns the new state, the mean and how many clients have been seen."""
        present = gathered["weight"] > 0
        index = checked_index(gathered["client_index"], self._num_clients)
        index = tf.boolean_mask(index, present)[:, tf.newaxis]
        seen = tf.tensor_scatter_nd_update(
            state.seen, index, tf.fill([tf.shape(index)[0]], True)
        )
        num_seen = _count(seen)

        def with_latest(rows, new):
            if new.shape[1:].num_elements() == 0:
                return rows  # TensorFlow cannot scatter rows of nothing.
            wide = _wide(rows, new)
            new = tf.cast(tf.boolean_mask(new, present), wide)
            new /= tf.cast(state.factor, wide)
            return tf.tensor_scatter_nd_update(rows, index, tf.cast(new, rows.dtype))

        rows = tf.nest.map_structure(with_latest, state.rows, gathered["update"])
        count = self._num_clients if self._mean_over == "all" else num_seen
        factor = state.factor
        if self._wait_for_all:
            factor = tf.where(tf.reduce_all(seen), factor, tf.zeros_like(factor))
        # Without clients the result is NaN, like that of `tff.aggregators.MeanFactory`.
        factor = tf.where(
            tf.reduce_any(present), factor, tf.constant(np.nan, tf.float64)
        )

        def mean(rows, new):
            wide = _wide(rows, new)
            total = _sum(rows, wide)
            average = tf.math.divide_no_nan(total, tf.cast(count, wide))
            return tf.cast(average * tf.cast(factor, wide), new.dtype)

        result = tf.nest.map_structure(mean, rows, gathered["update"])
        # Finalizers reject a result whose norm is not finite. Storing its rows would
        # make them reject all later rounds.
        finite = tf.math.is_finite(global_norm(result))
        # Not tf.where, which would copy every row.
        rows, seen, num_seen = tf.cond(
            finite,
            lambda: (rows, seen, num_seen),
            lambda: (state.rows, state.seen, _count(state.seen)),
        )
        factor = state.factor * self._decay
        if self._decay < 1.0:
            halves = any(t.dtype == tf.float16 for t in tf.nest.flatten(rows))
            rows, factor = tf.cond(
                factor < (_LEAST_HALF_FACTOR if halves else _LEAST_FACTOR),
                lambda: (_scaled(rows, factor), tf.ones_like(factor)),
                lambda: (rows, factor),
            )
        return LatestUpdatesState(rows, seen, factor), result, num_seen


def _wide(*tensors: tf.Tensor) -> tf.DType:
    """Returns the widest of the tensors' dtypes, float32 at least, to compute in."""
    return max((tf.float32, *[t.dtype for t in tensors]), key=lambda dtype: dtype.size)


def _sum(rows: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the sum of the rows in a dtype, without a copy of a large table in it."""
    row_size = max(1, rows.shape[1:].num_elements())
    step = max(1, _MOST_CAST // row_size)
    if rows.dtype == dtype or step >= rows.shape[0]:
        return tf.reduce_sum(tf.cast(rows, dtype), axis=0)

    def add(start, total):
        cast = tf.cast(rows[start : start + step], dtype)
        return start + step, total + tf.reduce_sum(cast, axis=0)

    _, total = tf.while_loop(
        lambda start, _: start < rows.shape[0],
        add,
        (0, tf.zeros(rows.shape[1:], dtype)),
        parallel_iterations=1,
    )
    return total


def _scaled(rows: object, factor: tf.Tensor) -> object:
    return tf.nest.map_structure(lambda row: row * tf.cast(factor, row.dtype), rows)


def _count(seen: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(seen, tf.int32))


def checked_index(client_index: tf.Tensor, num_clients: int) -> tf.Tensor:
    """Returns `client_index`, int32 [S].

    Fails at run time unless all are in [0, `num_clients`) and each is there once: a
    client has one row, so all but one of its updates would be lost.
    """
    valid = (client_index >= 0) & (client_index < num_clients)
    expected = f"Expected client_index in [0, {num_clients}), found"
    distinct = tf.equal(tf.size(tf.unique(client_index)[0]), tf.size(client_index))
    once = "Expected each client once in a round, found client_index"
    checks = [
        tf.debugging.Assert(tf.reduce_all(valid), [expected, client_index]),
        tf.debugging.Assert(distinct, [once, client_index]),
    ]
    with tf.control_dependencies([check for check in checks if check is not None]):
        return tf.identity(client_index)


def indexed_update_type(value_type: tff.Type) -> tff.Type:
    """Returns the type of the update in `<client_index=int32, update=...>`.

    Raises:
      TypeError: If `value_type` is anything else.
    """
    if (
        not isinstance(value_type, tff.StructType)
        or tff.structure.name_list(value_type) != ["client_index", "update"]
        or value_type.client_index != tff.TensorType(np.int32)
    ):
        raise TypeError(
            f"Expected value_type <client_index=int32, update=...>, found {value_type}."
        )
    return value_type.update
