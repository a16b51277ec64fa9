"""The rule of `MinNormFactory`: maps inner products of updates to their weights."""

import collections
from typing import Literal

import attrs
import numpy as np
import tensorflow as tf

from tff_algos.solvers import box_simplex, min_norm

ZeroUpdatePolicy = Literal["exclude", "keep"]

# Columns converted to float64 at a time, few enough for the copy to stay in caches.
_BLOCK_COLUMNS = 1 << 12
# Columns whose products are summed in float32.
_SHORT_COLUMNS = 1 << 11
# Blocks multiplied in parallel while earlier products are added.
_BLOCKS_AT_ONCE = 8
# If the longest row's squared norm is below this, rows that the rule does not treat as
# zero could have squared norms that underflow in float32.
_LEAST_LONGEST = 1e-8
# Norms of at most this fraction of the largest are treated as zero.
_TINY = 1e-12


def gram_matrix(rows: tf.Tensor, others: tf.Tensor | None = None) -> tf.Tensor:
    """Returns the inner products of rows, float64 [S, S].

    Args:
      rows: Floating point [S, ...]; converted to float64 by blocks of columns.
      others: [R, ...]; if given, their inner products with `rows` are returned, [R, S].
    """
    return _sum_of_products(
        rows, rows if others is None else others, _BLOCK_COLUMNS, tf.float64
    )


def quick_gram_matrix(rows: tf.Tensor) -> tf.Tensor:
    """Returns `gram_matrix(rows)`, in a third of the time for float32.

    Products of float32 are summed in float32 over 2,048 columns and then in float64.
    The error is about 1e-8 of the product of the norms, 1e-6 if few columns dominate,
    or more on devices with less precise float32 products. Rows whose squared norms
    overflow or underflow in float32, and other dtypes, are multiplied in float64.

    Args:
      rows: Floating point [S, ...].

    Returns:
      float64 [S, S].
    """
    if rows.dtype != tf.float32:
        return gram_matrix(rows)
    total = _sum_of_products(rows, rows, _SHORT_COLUMNS, tf.float32)
    longest = tf.reduce_max(tf.linalg.diag_part(total))
    held = tf.math.is_finite(longest) & (longest >= _LEAST_LONGEST)
    return tf.cond(
        held, lambda: (total + tf.transpose(total)) / 2, lambda: gram_matrix(rows)
    )


def _sum_of_products(
    rows: tf.Tensor, others: tf.Tensor, width: int, dtype: tf.DType
) -> tf.Tensor:
    """Returns inner products, multiplied in `dtype`, `width` columns at a time."""
    size = tf.reduce_prod(tf.shape(rows)[1:])
    right = tf.reshape(rows, [tf.shape(rows)[0], size])
    # One tensor for both; otherwise the loop would slice every block twice.
    left = right if others is rows else tf.reshape(others, [tf.shape(others)[0], size])

    def block_of(matrix, start):
        return tf.cast(matrix[:, start : start + width], dtype)

    def add_block(start, total):
        block = block_of(right, start)
        other = block if left is right else block_of(left, start)
        products = tf.matmul(other, block, transpose_b=True)
        return start + width, total + tf.cast(products, tf.float64)

    _, total = tf.while_loop(
        lambda start, _: start < size,
        add_block,
        (0, tf.zeros([tf.shape(left)[0], tf.shape(right)[0]], tf.float64)),
        parallel_iterations=_BLOCKS_AT_ONCE,
    )
    return total


def combine_rows(coefficients: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns `sum_i coefficients[i] * rows[i]`, of the rows' dtype and shape [...]."""
    flat = tf.reshape(rows, [tf.shape(rows)[0], -1])
    combined = tf.linalg.matvec(
        flat, tf.cast(coefficients, rows.dtype), transpose_a=True
    )
    return tf.reshape(combined, tf.shape(rows)[1:])


def combine_some_rows(coefficients: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns `combine_rows` of the rows whose coefficients are not zero.

    The other rows may have any values, including NaN. Takes longer than `combine_rows`,
    but no more memory.
    """
    coefficients = tf.cast(coefficients, rows.dtype)

    def add(index, total):
        row = tf.math.multiply_no_nan(rows[index], coefficients[index])
        return index + 1, total + row

    _, total = tf.while_loop(
        lambda index, _: index < tf.shape(rows)[0],
        add,
        (0, tf.zeros(tf.shape(rows)[1:], rows.dtype)),
        shape_invariants=(tf.TensorShape([]), rows.shape[1:]),
        parallel_iterations=1,
    )
    return total


@attrs.frozen
class MinNormWeights:
    """The coefficients of the rows, with measurements.

    Attributes:
      coefficients: float64 [S], of the unnormalized rows: the weights, divided by the
        rows' norms with `normalize` and times the median norm with `median_norm_lr`.
      measurements: Scalars by name; see `aggregators.MinNormFactory.create`.
    """

    coefficients: tf.Tensor
    measurements: collections.OrderedDict[str, tf.Tensor]


@attrs.frozen(kw_only=True)
class MinNormRule:
    """The settings of the weights; see `aggregators.MinNormFactory`."""

    epsilon: float
    normalize: bool
    cap: float | None
    zero_update_policy: ZeroUpdatePolicy
    median_norm_lr: bool = False

    def weights(self, gram: tf.Tensor, client_weights: tf.Tensor) -> MinNormWeights:
        """Returns the weights of least norm.

        Args:
          gram: Inner products of the rows, float64 [S, S].
          client_weights: Proportional to lambda_0, [S]; 0 excludes a row.
        """
        client_weights = tf.cast(client_weights, tf.float64)
        present = client_weights > 0
        norms = tf.sqrt(tf.linalg.diag_part(gram))
        tiny = _TINY * tf.reduce_max(tf.where(present, norms, 0.0))
        zero = tf.logical_and(present, norms <= tiny)
        taken = present
        if self.zero_update_policy == "exclude":
            taken = tf.logical_and(present, tf.logical_not(zero))
        scales = tf.ones_like(norms)
        if self.normalize:
            scales = tf.math.divide_no_nan(tf.ones_like(norms), tf.maximum(norms, tiny))
        taken_weights = tf.where(taken, client_weights, 0.0)
        base = tf.math.divide_no_nan(taken_weights, tf.reduce_sum(taken_weights))
        length = _median(norms, taken) if self.median_norm_lr else 1.0
        gram = gram * scales[:, tf.newaxis] * scales[tf.newaxis, :]
        base = self._capped(base, taken)
        lower = tf.where(taken, tf.maximum(base - self.epsilon, 0.0), 0.0)
        upper = tf.where(taken, tf.minimum(base + self.epsilon, self._cap(taken)), 0.0)
        solution = min_norm.solve(gram, lower, upper, base)
        weights = tf.where(solution.accepted, solution.weights, base)
        measurements = collections.OrderedDict(
            num_zero_updates=tf.reduce_sum(tf.cast(zero, tf.int32)),
            qp_fallbacks=tf.cast(tf.logical_not(solution.accepted), tf.int32),
            qp_gap=tf.cast(solution.gap, tf.float32),
            qp_iterations=solution.iterations,
            lambda_min=_extreme(tf.reduce_min, weights, taken, 1.0),
            lambda_max=_extreme(tf.reduce_max, weights, taken, 0.0),
            base_update_norm=tf.cast(length, tf.float32) * _norm(gram, base),
        )
        # If all are excluded, the result is NaN, like `tff.aggregators.MeanFactory`'s.
        nothing = tf.where(tf.reduce_any(present), 0.0, np.nan)
        return MinNormWeights(
            weights * (scales * length) + tf.cast(nothing, tf.float64), measurements
        )

    def _cap(self, taken: tf.Tensor) -> tf.Tensor:
        """Returns the largest weight allowed, float64 []."""
        if self.cap is None:
            return tf.constant(1.0, tf.float64)
        # With a cap below an equal share, no weights would sum to one.
        count = tf.reduce_sum(tf.cast(taken, tf.float64))
        return tf.maximum(
            tf.constant(self.cap, tf.float64),
            tf.math.divide_no_nan(tf.constant(1.0, tf.float64), count),
        )

    def _capped(self, base: tf.Tensor, taken: tf.Tensor) -> tf.Tensor:
        """Returns the weights nearest to lambda_0 that respect the cap."""
        if self.cap is None:
            return base
        upper = tf.where(taken, self._cap(taken), 0.0)
        return box_simplex.project(base, tf.zeros_like(base), upper)


def _extreme(reduce, weights: tf.Tensor, taken: tf.Tensor, other: float) -> tf.Tensor:
    """Returns the smallest or the largest weight of the rows taken, float32 []."""
    others = tf.constant(other, tf.float64)
    # The last for rounds without rows.
    found = tf.concat([tf.where(taken, weights, others), others[tf.newaxis]], axis=0)
    return tf.cast(reduce(found), tf.float32)


def _median(values: tf.Tensor, taken: tf.Tensor) -> tf.Tensor:
    """Returns the median of the values taken, float64 []; 0 if there are none."""
    ascending = tf.sort(tf.boolean_mask(values, taken))
    count = tf.size(ascending)
    middle = ascending[(count - 1) // 2 : count // 2 + 1]
    return tf.math.divide_no_nan(
        tf.reduce_sum(middle), tf.cast(tf.size(middle), tf.float64)
    )


def _norm(gram: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns the norm of the combination of rows, float32 []."""
    square = tf.tensordot(weights, tf.linalg.matvec(gram, weights), 1)
    return tf.cast(tf.sqrt(tf.maximum(square, 0.0)), tf.float32)
