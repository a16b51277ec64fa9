"""The min-norm point: the shortest mixture of vectors, from their Gram matrix.

FedMGDA+ (Hu et al., 2020, arXiv 2006.11489) weights the clients' updates g_i so that
d = sum_i w_i g_i is as short as possible: with no bound but w >= 0 it is the direction
of steepest common descent (Désidéri, 2012). With K_ij = <g_i, g_j> the problem is

    minimise 1/2 w'Kw   over   lower <= w <= upper,  sum(w) = sum(start).

It is solved in two stages, each judged by the certificate of Frank and Wolfe, the gap
w'Kw - min_v v'Kw >= (w'Kw - optimum) / 2, over the v that are allowed for w:

1. Block principal pivoting (Portugal, Júdice and Vicente, 1994): guess which weights lie
   on a bound, solve for the others, move all that contradict the guess at once, repeat.
   A handful of Cholesky factorizations, and weights that are exactly on their bounds.
   Where vectors depend on each other it may cycle.
2. Then a primal-dual interior-point method (Mehrotra, 1992), which does not: some thirty
   factorizations, whatever the vectors.

Both work with vectors scaled to length 1, x_i = ||g_i|| w_i, so that norms may differ by
any number of decades.
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

# The gap, relative to ||d||^2, below which a solution is accepted, and how many times the
# noise of K it may seem to be.
_ACCEPTED_GAP = 1e-6
_ACCEPTED_NOISE = 64


class MinNormSolution(NamedTuple):
    """A solution, with what it takes to judge it.

    Attributes:
      weights: Float64 [n], within the bounds exactly.
      gap: Float64 [], in units of the Gram matrix: an upper bound of half of what
        ||d||^2 exceeds its minimum by. NaN if an argument was not finite.
      iterations: Int32 [], pivots and interior steps together; 0 if the start is
        optimal.
      accepted: Bool [], whether the gap is at most 1e-6 of ||d||^2, or explained by
        rounding errors. If not, the weights are the best that were found: the caller
        decides what to do.
    """

    weights: tf.Tensor
    gap: tf.Tensor
    iterations: tf.Tensor
    accepted: tf.Tensor


def solve(
    gram: tf.Tensor, lower: tf.Tensor, upper: tf.Tensor, start: tf.Tensor
) -> MinNormSolution:
    """Returns the weights of the shortest mixture of vectors with a Gram matrix.

    Pure TensorFlow, deterministic, for any n >= 0, which may be unknown until it
    runs. If `start` is optimal, as it is if the bounds leave no choice, then it is
    returned bit for bit. A row that takes no part has 0 for both bounds; what it holds
    is ignored. Where several weights are optimal, they all give the same d.

    Args:
      gram: Float [n, n], the inner products of the n vectors; if it is not symmetric,
        its symmetric part counts.
      lower: Float [n], the smallest allowed weights.
      upper: Float [n], the largest allowed weights.
      start: Float [n], weights within the bounds; their sum is the sum of the result.

    Returns:
      The solution. If an argument is not finite, it is the start, not accepted.

    Raises:
      ValueError: If the shapes do not fit together, as far as they are known.
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


# Traced once: its many ops would take seconds in every computation that solves.
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
    problem = Problem(gram, lower, upper, tf.reduce_sum(start), rounding)

    weights, iterations, noise = tf.cond(
        tf.logical_not(finite) | judge(problem, start).is_optimal,
        lambda: (start, tf.constant(0), rounding),
        lambda: _search(problem, start),
    )
    gap, final = certificate(problem._replace(noise=noise), weights)
    gap = tf.where(finite, gap, tf.constant(np.nan, tf.float64))
    square = dot(weights, tf.linalg.matvec(gram, weights))
    # Weights are known to the rounding error of their sum, and d to that of the longest.
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
    """The weights, the number of iterations that they took, and the noise found."""
    scaled = scale(problem)
    problem = problem._replace(noise=scaled.noise)
    pivoted, num_pivots = block_pivoting.solve(problem, scaled, start)
    weights, num_steps = tf.cond(
        pivoted.is_optimal,
        lambda: (pivoted.weights, tf.constant(0)),
        lambda: interior_point.solve(problem, scaled, pivoted),
    )
    return weights, num_pivots + num_steps, scaled.noise
