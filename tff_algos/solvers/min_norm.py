"""The minimum-norm combination of vectors, from their Gram matrix.

FedMGDA+ (Hu et al., 2022, arXiv 2006.11489) weights the clients' updates g_i so that
d = sum_i w_i g_i is as short as possible: if w >= 0 is the only bound, d is the
direction of steepest common descent (Désidéri, 2012). With K_ij = <g_i, g_j> the
problem is

    minimize 1/2 w'Kw   over   lower <= w <= upper,  sum(w) = sum(start).

It is solved in two stages, each judged by the Frank-Wolfe certificate, the gap
w'Kw - min_v v'Kw >= (w'Kw - optimum) / 2, over all feasible v:

1. Block principal pivoting (Portugal, Júdice and Vicente, 1994): guess which weights lie
   on a bound, solve for the others, change all guesses that the solution contradicts at
   once, and repeat. It takes a handful of Cholesky factorizations and returns weights
   exactly on their bounds, but may cycle if vectors are linearly dependent.
2. If it fails, a primal-dual interior-point method (Mehrotra, 1992), which does not
   cycle and takes about thirty factorizations for any vectors.

Both scale vectors to length 1, x_i = ||g_i|| w_i, so norms may differ by many orders of
magnitude.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_algos.solvers import block_pivoting, interior_point
from tff_algos.solvers.min_norm_problem import (
    EPSILON,
    FINAL_NOISE,
    Problem,
    certificate,
    dot,
    judge,
    restrict,
    scale,
)

# The gap below which a solution is accepted: relative to ||d||^2, and in multiples of
# the noise of K.
_ACCEPTED_GAP = 1e-6
_ACCEPTED_NOISE = 64


class MinNormSolution(NamedTuple):
    """A solution and its diagnostics.

    Attributes:
      weights: float64 [n], within the bounds exactly.
      gap: float64 [], in units of the Gram matrix: an upper bound on half of the excess
        of ||d||^2 over its minimum. NaN if an argument is not finite.
      iterations: int32 [], the number of pivots and interior-point steps; 0 if the
        start is optimal.
      accepted: bool [], whether the gap is at most 1e-6 of ||d||^2 or explained by
        rounding errors. If not, the weights are the best found, and the caller decides
        whether to use them.
    """

    weights: tf.Tensor
    gap: tf.Tensor
    iterations: tf.Tensor
    accepted: tf.Tensor


def solve(
    gram: tf.Tensor, lower: tf.Tensor, upper: tf.Tensor, start: tf.Tensor
) -> MinNormSolution:
    """Returns the weights of the minimum-norm combination of vectors.

    Pure TensorFlow and deterministic, for any n >= 0, which may be unknown until run
    time. If `start` is optimal, as when it is the only feasible point, it is returned
    bit-identical. An excluded row has 0 for both bounds; its values are ignored. If
    several weights are optimal, they all give the same d.

    Args:
      gram: float [n, n], the inner products of the n vectors; of a matrix that is not
        symmetric, the symmetric part is used.
      lower: float [n], the smallest allowed weights.
      upper: float [n], the largest allowed weights.
      start: float [n], weights within the bounds; their sum is the sum of the result.

    Returns:
      The solution. If an argument is not finite, its weights are `start`, and it is
      not accepted.

    Raises:
      ValueError: If the shapes, as far as they are known, are inconsistent.
    """
    gram, lower, upper, start = (
        tf.cast(tensor, tf.float64) for tensor in (gram, lower, upper, start)
    )
    _check_shapes(gram, lower, upper, start)
    solution = _solve(gram, lower, upper, start)
    solution.weights.set_shape(start.shape)
    return solution


_VECTOR = tf.TensorSpec([None], tf.float64)
_MATRIX = tf.TensorSpec([None, None], tf.float64)


# Traced once: tracing its many ops takes seconds, in every computation that uses it.
@tf.function(input_signature=[_MATRIX, _VECTOR, _VECTOR, _VECTOR], autograph=False)
def _solve(
    gram: tf.Tensor, lower: tf.Tensor, upper: tf.Tensor, start: tf.Tensor
) -> MinNormSolution:
    takes_part = tf.not_equal(lower, 0) | tf.not_equal(upper, 0)
    gram = restrict(gram, takes_part)
    finite = tf.reduce_all(
        [tf.reduce_all(tf.math.is_finite(x)) for x in (gram, lower, upper, start)]
    )
    gram = tf.where(finite, gram, tf.zeros_like(gram))
    largest = tf.reduce_max(tf.concat([tf.linalg.diag_part(gram), [0.0]], axis=0))
    gram = tf.math.divide_no_nan(gram, largest)
    gram = (gram + tf.transpose(gram)) / 2
    rounding = EPSILON * tf.cast(tf.size(start) + 8, tf.float64)
    problem = Problem(gram, tf.abs(gram), lower, upper, tf.reduce_sum(start), rounding)

    weights, iterations, noise = tf.cond(
        tf.logical_not(finite) | judge(problem, start).is_optimal,
        lambda: (start, tf.constant(0), rounding),
        lambda: _search(problem, start),
    )
    gap, final = certificate(problem._replace(noise=noise), weights)
    gap = tf.where(finite, gap, tf.constant(np.nan, tf.float64))
    square = dot(weights, tf.linalg.matvec(gram, weights))
    # Weights are known up to the rounding error of their sum, and d up to that error
    # times the length of the longest vector, which is 1.
    zero = (4 * EPSILON * problem.total) ** 2
    noise = _ACCEPTED_NOISE / FINAL_NOISE * final
    accepted = gap <= tf.maximum(tf.maximum(_ACCEPTED_GAP * square, zero), noise)
    return MinNormSolution(weights, gap * largest, iterations, accepted)


def _check_shapes(
    gram: tf.Tensor, lower: tf.Tensor, upper: tf.Tensor, start: tf.Tensor
) -> None:
    size = start.shape
    for name, tensor, shape in (
        ("start", start, tf.TensorShape([None])),
        ("gram", gram, size + size),
        ("lower", lower, size),
        ("upper", upper, size),
    ):
        if not tensor.shape.is_compatible_with(shape):
            raise ValueError(
                f"Expected {name} to have the shape {shape}, found {tensor.shape}."
            )


def _search(
    problem: Problem, start: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the weights, the number of iterations, and the noise found."""
    scaled = scale(problem)
    problem = problem._replace(noise=scaled.noise)
    pivoted, num_pivots = block_pivoting.solve(problem, scaled, start)
    weights, num_steps = tf.cond(
        pivoted.is_optimal,
        lambda: (pivoted.weights, tf.constant(0)),
        lambda: interior_point.solve(problem, scaled, pivoted),
    )
    return weights, num_pivots + num_steps, scaled.noise
