"""Aggregation factories that tolerate some malicious clients.

They take the place of a weighted mean, in TFF's code or this package's:

    tff.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        tff.learning.optimizers.build_sgdm(0.1),
        model_aggregator=tff_algos.aggregators.MedianFactory(),
    )

The server sees individual clients' updates: incompatible with secure aggregation and
with privacy mechanisms that require sums.
"""

import collections
from typing import Annotated

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators import robust_rules
from tff_algos.aggregators.exclude_non_finite import check_floating_point
from tff_algos.aggregators.gather import build_gather_computation
from tff_algos.aggregators.robust_rules import Rule
from tff_algos.hyperparameters import checked, hparam

# Sums of a few squares must be finite as well.
_HEADROOM = 1e10


class RobustFactory(tff.aggregators.WeightedAggregationFactory):
    """Aggregates the rows of clients' updates by a rule.

    Clients of weight zero or with an update that is not finite are excluded. If none is
    left, the result is NaN, like `tff.aggregators.MeanFactory`'s, which learning
    processes reject.
    """

    def __init__(self, rule: Rule) -> None:
        """Initializes the factory with a rule of `robust_rules`."""
        self._rule = rule

    def create(
        self, value_type: tff.Type, weight_type: tff.Type
    ) -> tff.templates.AggregationProcess:
        """Returns the process for updates and weights of the given types.

        It has no state. Its measurements are

          num_non_finite_clients: int32, clients excluded because their update was not
            finite, or so large that its square is not, in float64.
          num_left_out: int32, clients without any share in the aggregate.
          shares: float32 [S], each client's share in the aggregate, in the order of the
            clients: of coordinates for a median or trimmed mean, else its weight.

        Raises:
          TypeError: If `value_type` has tensors that are not floating point or whose
            shape is unknown.
        """
        check_floating_point(value_type)
        gather = build_gather_computation(
            tff.StructType([("weight", weight_type), ("value", value_type)])
        )
        rule = self._rule

        @tff.tensorflow.computation(gather.type_signature.result.member)
        @tf.function
        def combine(gathered):
            rows = tf.nest.flatten(gathered["value"])
            weights = tf.cast(gathered["weight"], tf.float64)
            finite = tf.math.is_finite(weights)
            for each in rows:
                finite &= _is_finite_row(each)
            kept = finite & (weights > 0)
            present = [tf.boolean_mask(each, kept) for each in rows]
            results, shares = tf.cond(
                tf.reduce_any(kept),
                lambda: rule(present, tf.boolean_mask(weights, kept)),
                lambda: (
                    [
                        tf.fill(each.shape[1:], tf.cast(float("nan"), each.dtype))
                        for each in rows
                    ],
                    tf.zeros([0], tf.float64),
                ),
            )
            shares = tf.scatter_nd(
                tf.where(kept), shares, tf.shape(kept, out_type=tf.int64)
            )
            measurements = collections.OrderedDict(
                num_non_finite_clients=_count(tf.logical_not(finite)),
                num_left_out=_count(tf.equal(shares, 0.0)),
                shares=tf.cast(shares, tf.float32),
            )
            return tf.nest.pack_sequence_as(gathered["value"], results), measurements

        @tff.federated_computation
        def initialize():
            return tff.federated_value((), tff.SERVER)

        @tff.federated_computation(
            initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_fn(state, value, weight):
            named = collections.OrderedDict(weight=weight, value=value)
            result, measurements = tff.federated_map(
                combine, gather(tff.federated_zip(named))
            )
            return tff.templates.MeasuredProcessOutput(state, result, measurements)

        return tff.templates.AggregationProcess(initialize, next_fn)


def _is_finite_row(rows: tf.Tensor) -> tf.Tensor:
    """Returns for each row whether the rules can compute with it, bool [n]."""
    axes = list(range(1, rows.shape.rank))
    if rows.dtype == tf.float64:
        return tf.math.is_finite(_HEADROOM * tf.reduce_sum(tf.square(rows), axes))
    return tf.reduce_all(tf.math.is_finite(rows), axes)


def _count(flags: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(flags, tf.int32))


class MedianFactory(RobustFactory):
    """The median of every coordinate; see `robust_rules.median`."""

    def __init__(self) -> None:
        super().__init__(robust_rules.median())


class TrimmedMeanFactory(RobustFactory):
    """The trimmed mean of every coordinate; see `robust_rules.trimmed_mean`."""

    @checked
    def __init__(self, share: Annotated[float, hparam(low=0, below=0.5)] = 0.1) -> None:
        """Initializes the factory.

        Args:
          share: The share of clients left out at each end of every coordinate, rounded
            down to whole clients.

        Raises:
          HyperparameterError: If `share` is invalid.
        """
        super().__init__(robust_rules.trimmed_mean(share))


class GeometricMedianFactory(RobustFactory):
    """The weighted geometric median; see `robust_rules.geometric_median`."""

    def __init__(self) -> None:
        super().__init__(robust_rules.geometric_median())


class KrumFactory(RobustFactory):
    """Krum and Multi-Krum; see `robust_rules.krum`.

    Its guarantee needs 2 * num_malicious + 3 clients in a round.
    """

    @checked
    def __init__(
        self,
        num_malicious: Annotated[int, hparam(low=0)],
        num_chosen: Annotated[int, hparam(low=1)] = 1,
    ) -> None:
        """Initializes the factory.

        Args:
          num_malicious: The number of malicious clients to tolerate in a round.
          num_chosen: The number of clients whose mean is the aggregate: 1 for Krum,
            more for Multi-Krum.

        Raises:
          HyperparameterError: If an argument is invalid.
        """
        super().__init__(robust_rules.krum(num_malicious, num_chosen))
