"""The min-norm aggregate: a common descent direction of all clients.

Hu, Shaloudegi, Zhang, Yu: "Federated Learning Meets Multi-Objective Optimization",
2022, arXiv 2006.11489 (FedMGDA+). The multiple gradient descent algorithm is by
Desideri, 2012.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Annotated

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators.exclude_non_finite import (
    build_exclude_computation,
    check_floating_point,
)
from tff_algos.aggregators.gather import build_gather_computation, check_known_shapes
from tff_algos.aggregators.min_norm_rule import (
    MinNormRule,
    MinNormWeights,
    ZeroUpdatePolicy,
    combine_rows,
    combine_some_rows,
    quick_gram_matrix,
)
from tff_algos.hyperparameters import (
    UnusableHyperparameterError,
    checked,
    hparam,
)

_named = collections.OrderedDict
_GRAM_TYPE = tff.TensorType(np.float64, [None, None])
_COEFFICIENTS_TYPE = tff.TensorType(np.float64, [None])


class MinNormFactory(tff.aggregators.WeightedAggregationFactory):
    """Aggregates clients' updates to their convex combination of least norm.

        min over lambda of || sum_i lambda_i * u_i ||
        with sum_i lambda_i = 1, lambda >= 0, |lambda_i - lambda0_i| <= epsilon

    u_i is a client's update or, with `normalize`, its direction: the update divided by
    its global norm. lambda_0 is proportional to the clients' weights. If the box is
    wide enough, the result d satisfies <u_i, d> >= ||d||^2 for every client: to first
    order, a step along d increases no client's loss. With `epsilon` 0 the result is the
    weighted mean of the updates or directions. Directions do not depend on the length
    of a client's update.

    Clients with weight zero, or with an update that is not finite or so long that the
    square of its norm overflows float64, are excluded, and lambda_0 sums to one over the
    others. If no client is left, the result is NaN, like `tff.aggregators.MeanFactory`'s,
    which learning processes reject.

    Inner products of float32 updates have an error of about 1e-8 of the updates' norms;
    those of other dtypes have float64's precision. Weights are computed in float64.

    The server sees individual clients' updates: incompatible with secure aggregation
    and with privacy mechanisms that require sums. It holds all updates at once or, with
    `num_blocks`, one block of columns at a time.

    For example, in TFF's own FedAvg:

        tff.learning.algorithms.build_weighted_fed_avg(
            model_fn,
            tff.learning.optimizers.build_sgdm(0.1),
            client_weighting=tff.learning.ClientWeighting.UNIFORM,
            model_aggregator=MinNormFactory(normalize=True),
        )
    """

    @checked
    def __init__(
        self,
        epsilon: Annotated[float, hparam(low=0, symbol="epsilon")] = 1.0,
        *,
        normalize: Annotated[bool, hparam()] = False,
        median_norm_lr: Annotated[bool, hparam()] = False,
        cap: Annotated[float | None, hparam(above=0, high=1)] = None,
        zero_update_policy: Annotated[ZeroUpdatePolicy, hparam()] = "exclude",
        num_blocks: Annotated[int, hparam(low=1)] = 1,
    ) -> None:
        """Initializes the factory.

        Args:
          epsilon: Half the width of the box around lambda_0; 1 for no box.
          normalize: Whether updates are divided by their norms.
          median_norm_lr: Whether the combination of directions is multiplied by the
            median update norm of the participating clients; only with `normalize`.
          cap: The largest weight; None for no cap. A lambda_0 that exceeds it is
            replaced by the nearest weights that do not. If `cap` is less than an equal
            share, weights are equal.
          zero_update_policy: How to treat a numerically zero update (its norm is at
            most 1e-12 of the largest): "exclude" drops the client, "keep" retains it,
            so that the combination is zero if the limits of the weights permit.
          num_blocks: The number of column blocks that the server processes one at a
            time. It holds S * d / `num_blocks` numbers; clients upload one block per
            turn and, in a final turn, their term of the combination. The runtime keeps
            the clients' updates between turns.

        Raises:
          HyperparameterError: If an argument is invalid.
        """
        if median_norm_lr and not normalize:
            raise UnusableHyperparameterError(
                "median_norm_lr", median_norm_lr, "without normalize"
            )
        self._num_blocks = num_blocks
        self._rule = MinNormRule(
            epsilon=epsilon,
            normalize=normalize,
            median_norm_lr=median_norm_lr,
            cap=cap,
            zero_update_policy=zero_update_policy,
        )

    def create(
        self, value_type: tff.Type, weight_type: tff.Type
    ) -> tff.templates.AggregationProcess:
        """Returns the process for updates and weights of the given types.

        It has no state. Its measurements are scalars at the server:

          num_non_finite_clients: int32, clients excluded because their update or the
            square of its norm was not finite.
          num_zero_updates: int32, clients whose update was numerically zero.
          qp_fallbacks: int32, 1 if the solver's solution was not accepted and lambda_0
            was used instead, else 0.
          qp_gap: float32, upper bound on half the squared norm's excess over its
            minimum.
          qp_iterations: int32, iterations of the solver.
          lambda_min, lambda_max: float32, extreme weights of participating clients.
          base_update_norm: float32, the norm of the combination by lambda_0.

        Raises:
          TypeError: If `value_type` has tensors that are not floating point or whose
            shape is unknown.
        """
        check_floating_point(value_type)
        if self._num_blocks == 1:
            combine = _build_combination(self._rule, value_type, weight_type)
        else:
            combine = _build_blockwise_combination(
                self._rule, value_type, weight_type, self._num_blocks
            )

        @tff.federated_computation
        def initialize():
            return tff.federated_value((), tff.SERVER)

        @tff.federated_computation(
            initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_fn(state, value, weight):
            result, measurements = combine(value, weight)
            return tff.templates.MeasuredProcessOutput(state, result, measurements)

        return tff.templates.AggregationProcess(initialize, next_fn)


def _build_combination(
    rule: MinNormRule, value_type: tff.Type, weight_type: tff.Type
) -> tff.Computation:
    """Builds `({value}@CLIENTS, {weight}@CLIENTS -> <value, measurements>)`.

    Non-finite updates are detected from the inner products, so clients need not check
    their own.
    """
    gather = build_gather_computation(
        tff.StructType([("weight", weight_type), ("value", value_type)])
    )

    @tff.tensorflow.computation(gather.type_signature.result.member)
    @tf.function
    def combine(gathered):
        rows = tf.nest.flatten(gathered["value"])
        gram = tf.add_n([quick_gram_matrix(each) for each in rows])
        finite, chosen = _weights_of_finite(rule, gram, gathered["weight"])
        combined = tf.cond(
            tf.reduce_all(finite),
            lambda: [combine_rows(chosen.coefficients, each) for each in rows],
            lambda: [combine_some_rows(chosen.coefficients, each) for each in rows],
        )
        combined = _nan_without_clients(combined, chosen.coefficients)
        result = tf.nest.pack_sequence_as(gathered["value"], combined)
        return result, _measurements(tf.logical_not(finite), chosen)

    @tff.federated_computation(
        tff.FederatedType(value_type, tff.CLIENTS),
        tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def gather_and_combine(value, weight):
        gathered = gather(tff.federated_zip(_named(weight=weight, value=value)))
        result, measurements = tff.federated_map(combine, gathered)
        return result, measurements

    return gather_and_combine


def _weights_of_finite(
    rule: MinNormRule, gram: tf.Tensor, weights: tf.Tensor
) -> tuple[tf.Tensor, MinNormWeights]:
    """Returns whose norms and weights are finite, bool [S], and the rule for these."""
    finite = tf.math.is_finite(tf.linalg.diag_part(gram))
    finite &= tf.math.is_finite(tf.cast(weights, tf.float64))
    of_finite = finite[:, tf.newaxis] & finite[tf.newaxis, :]
    return finite, rule.weights(
        tf.where(of_finite, gram, 0.0), tf.where(finite, weights, 0)
    )


def _nan_without_clients(
    combined: Sequence[tf.Tensor], coefficients: tf.Tensor
) -> Sequence[tf.Tensor]:
    """Returns a combination, which is zero of no rows; `MeanFactory`'s is then NaN."""

    def no_numbers() -> list[tf.Tensor]:
        return [tf.fill(tf.shape(t), tf.constant(np.nan, t.dtype)) for t in combined]

    return tf.cond(tf.size(coefficients) > 0, lambda: list(combined), no_numbers)


def _measurements(
    excluded: tf.Tensor, chosen: MinNormWeights
) -> collections.OrderedDict[str, tf.Tensor]:
    """Returns the rule's measurements and the number of clients excluded, of [S]."""
    count = tf.reduce_sum(tf.cast(excluded, tf.int32))
    return _named(num_non_finite_clients=count, **chosen.measurements)


@attrs.frozen
class _Blocks:
    """A value as rows of equal width, filled up with zeros.

    Attributes:
      type: The type of the rows, float32 or float64 [number of blocks, width].
      split: The computation from a value to its blocks.
      join: The computation from blocks to the value.
    """

    type: tff.TensorType
    split: tff.Computation
    join: tff.Computation


def _build_blocks(value_type: tff.Type, num_blocks: int) -> _Blocks:
    specs = tff.types.type_to_tf_tensor_specs(value_type)
    leaves = tf.nest.flatten(specs)
    sizes = [spec.shape.num_elements() for spec in leaves]
    width = -(-sum(sizes) // num_blocks)
    padding = width * num_blocks - sum(sizes)
    dtype = tf.float32 if all(s.dtype == tf.float32 for s in leaves) else tf.float64
    blocks_type = tff.TensorType(dtype.as_numpy_dtype, [num_blocks, width])

    @tff.tensorflow.computation(value_type)
    def split(value):
        parts = [tf.reshape(tf.cast(t, dtype), [-1]) for t in tf.nest.flatten(value)]
        flat = tf.concat([*parts, tf.zeros([padding], dtype)], axis=0)
        return tf.reshape(flat, [num_blocks, width])

    @tff.tensorflow.computation(blocks_type)
    def join(blocks):
        *parts, _ = tf.split(tf.reshape(blocks, [-1]), [*sizes, padding])
        tensors = [
            tf.cast(tf.reshape(part, spec.shape), spec.dtype)
            for part, spec in zip(parts, leaves, strict=True)
        ]
        return tf.nest.pack_sequence_as(specs, tensors)

    return _Blocks(blocks_type, split, join)


def _build_gram_by_block(
    blocks_type: tff.TensorType,
) -> Callable[[tff.Value], tff.Value]:
    """Returns, for federated computations, a function from blocks to the Gram matrix.

    It maps {blocks}@CLIENTS to float64[S, S]@SERVER, and gathers one block at a time.
    """
    num_blocks, width = blocks_type.shape
    gather = build_gather_computation(tff.TensorType(blocks_type.dtype, [width]))
    rows_type = gather.type_signature.result.member

    @tff.tensorflow.computation
    def first_index():
        return tf.constant(0)

    @tff.tensorflow.computation(blocks_type, np.int32)
    def cut(blocks, index):
        return tf.gather(blocks, index)

    # Returning the next index with a block's products makes blocks arrive one by one.
    @tff.tensorflow.computation(rows_type, np.int32)
    @tf.function
    def first_gram(rows, index):
        return quick_gram_matrix(rows), index + 1

    @tff.tensorflow.computation(rows_type, np.int32, _GRAM_TYPE)
    @tf.function
    def add_gram(rows, index, gram):
        return gram + quick_gram_matrix(rows), index + 1

    def gram_of(blocks):
        index = tff.federated_eval(first_index, tff.SERVER)
        gram = None
        for _ in range(num_blocks):
            block = tff.federated_map(cut, (blocks, tff.federated_broadcast(index)))
            rows = gather(block)
            if gram is None:
                gram, index = tff.federated_map(first_gram, (rows, index))
            else:
                gram, index = tff.federated_map(add_gram, (rows, index, gram))
        return gram

    return gram_of


def _build_blockwise_combination(
    rule: MinNormRule, value_type: tff.Type, weight_type: tff.Type, num_blocks: int
) -> tff.Computation:
    """Builds `_build_combination`'s computation for one block of columns at a time.

    A client looks up its coefficient by the fingerprint of its update, so it needs no
    index; clients with equal updates share their coefficients equally.
    """
    check_known_shapes(value_type)
    exclude = build_exclude_computation(value_type, weight_type)
    gather_labels = build_gather_computation(
        tff.to_type(_named(weight=weight_type, fingerprint=np.int64, excluded=np.int32))
    )
    labels_type = gather_labels.type_signature.result.member
    as_blocks = _build_blocks(value_type, num_blocks)
    gram_of = _build_gram_by_block(as_blocks.type)

    @tff.tensorflow.computation(as_blocks.type)
    def fingerprint(blocks):
        content = tf.reshape(tf.bitcast(blocks, tf.uint8), [1, -1])
        code = tf.raw_ops.Fingerprint(data=content, method="farmhash64")
        return tf.bitcast(code, tf.int64)[0]

    @tff.tensorflow.computation(_GRAM_TYPE, labels_type)
    @tf.function
    def choose(gram, labels):
        finite, chosen = _weights_of_finite(rule, gram, labels["weight"])
        excluded = tf.cast(labels["excluded"], tf.bool) | tf.logical_not(finite)
        return chosen.coefficients, _measurements(excluded, chosen)

    @tff.tensorflow.computation(as_blocks.type, _COEFFICIENTS_TYPE)
    @tf.function
    def checked(total, coefficients):
        return _nan_without_clients([total], coefficients)[0]

    @tff.tensorflow.computation(
        as_blocks.type, np.int64, _COEFFICIENTS_TYPE, labels_type
    )
    @tf.function
    def own_part(blocks, own_fingerprint, coefficients, labels):
        mine = tf.cast(tf.equal(labels["fingerprint"], own_fingerprint), tf.float64)
        # Without a match this is 0 / 0 = NaN, and the round is rejected.
        coefficient = tf.reduce_sum(mine * coefficients) / tf.reduce_sum(mine)
        return blocks * tf.cast(coefficient, blocks.dtype)

    @tff.federated_computation(
        tff.FederatedType(value_type, tff.CLIENTS),
        tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def combine_in_turns(value, weight):
        value, weight, excluded = tff.federated_map(exclude, (value, weight))
        blocks = tff.federated_map(as_blocks.split, value)
        label = tff.federated_map(fingerprint, blocks)
        labels = gather_labels(
            tff.federated_zip(
                _named(weight=weight, fingerprint=label, excluded=excluded)
            )
        )
        coefficients, measurements = tff.federated_map(
            choose, (gram_of(blocks), labels)
        )
        parts = tff.federated_map(
            own_part,
            (
                blocks,
                label,
                tff.federated_broadcast(coefficients),
                tff.federated_broadcast(labels),
            ),
        )
        total = tff.federated_map(checked, (tff.federated_sum(parts), coefficients))
        return tff.federated_map(as_blocks.join, total), measurements

    return combine_in_turns
