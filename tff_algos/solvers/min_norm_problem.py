"""The min-norm problem: its certificate, its scaling, and its feasible points."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_algos.solvers import box_simplex

# The gaps, relative to the largest K_ii and to ||d||^2, below which a search ends. The
# gap bounds ||d - d*||^2 / 2: without the second, d would have at most five digits.
_FINAL_GAP = 1e-10
_FINAL_GAP_OF_SQUARED_NORM = 1e-12
# The gap, in multiples of the noise of K, below which a search ends.
FINAL_NOISE = 8

# The smallest norm, relative to the largest; squares of smaller norms underflow.
_SMALLEST_NORM = 1e-60

EPSILON = np.finfo(np.float64).eps


class Problem(NamedTuple):
    """Minimize 1/2 w'Kw over a box-simplex; the largest K_ii is 1, or 0.

    `noise` bounds the errors of K, float64 [], relative to the norms of its vectors:
    float64's rounding errors, or the negative curvature, which is due to errors because
    an exact Gram matrix has none. `magnitudes` are |K|, float64 [n, n].
    """

    gram: tf.Tensor
    magnitudes: tf.Tensor
    lower: tf.Tensor
    upper: tf.Tensor
    total: tf.Tensor
    noise: tf.Tensor


def restrict(gram: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns the Gram matrix with all other rows and columns zeroed, bool [n]."""
    return tf.where(rows & rows[:, tf.newaxis], gram, tf.zeros_like(gram))


def certificate(problem: Problem, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the Frank-Wolfe gap of weights and the gap at which the search ends."""
    gradient = tf.linalg.matvec(problem.gram, weights)
    vertex = box_simplex.minimize_linear(
        gradient, problem.lower, problem.upper, problem.total
    )
    difference = weights - vertex
    # The difference sums to zero only up to rounding errors, which a large gradient
    # would magnify. Subtracting a constant from the gradient does not change the gap.
    shared = tf.math.divide_no_nan(dot(gradient, vertex), problem.total)
    gap = tf.maximum(dot(difference, gradient - shared), 0.0)
    rounding = dot(tf.abs(difference), tf.linalg.matvec(problem.magnitudes, weights))
    rounding *= FINAL_NOISE * problem.noise
    final = tf.maximum(_FINAL_GAP_OF_SQUARED_NORM * dot(weights, gradient), rounding)
    return gap, tf.minimum(final, _FINAL_GAP)


def dot(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(left * right)


class Scaled(NamedTuple):
    """The problem for x_i = norm_i * w_i: minimize 1/2 x'Cx with sum(x / norms) given.

    Attributes:
      cosines: C, float64 [n, n].
      inverses: 1 / norm_i, float64 [n].
      noise: As in `Problem`.
    """

    cosines: tf.Tensor
    inverses: tf.Tensor
    noise: tf.Tensor


def scale(problem: Problem) -> Scaled:
    norms = tf.sqrt(tf.maximum(tf.linalg.diag_part(problem.gram), 0.0))
    inverses = 1 / tf.maximum(norms, _SMALLEST_NORM)
    cosines = problem.gram * inverses * inverses[:, tf.newaxis]
    lowest = tf.reduce_min(tf.concat([tf.linalg.eigvalsh(cosines), [0.0]], axis=0))
    noise = tf.maximum(problem.noise, -2 * lowest)
    return Scaled(cosines, inverses, noise)


def within(problem: Problem, weights: tf.Tensor) -> tf.Tensor:
    """Returns weights within the bounds and with the right sum, close to given ones.

    The error of the sum goes to the shortest vectors, which change d least.
    """
    weights = tf.clip_by_value(weights, problem.lower, problem.upper)
    lack = problem.total - tf.reduce_sum(weights)
    room = tf.where(lack > 0, problem.upper - weights, weights - problem.lower)
    moved = box_simplex.minimize_linear(
        tf.linalg.diag_part(problem.gram), tf.zeros_like(room), room, tf.abs(lack)
    )
    weights += tf.sign(lack) * moved
    return tf.clip_by_value(weights, problem.lower, problem.upper)


class Judged(NamedTuple):
    """Weights, float64 [n], with their gap and whether the search ends at them."""

    weights: tf.Tensor
    gap: tf.Tensor
    is_optimal: tf.Tensor


def judge(problem: Problem, weights: tf.Tensor) -> Judged:
    gap, final = certificate(problem, weights)
    return Judged(weights, gap, gap <= final)


def better(best: Judged, other: Judged) -> Judged:
    """Returns the weights with the smaller gap; the first if they are tied."""
    is_better = other.gap < best.gap
    return Judged(
        *(tf.where(is_better, new, old) for new, old in zip(other, best, strict=True))
    )
