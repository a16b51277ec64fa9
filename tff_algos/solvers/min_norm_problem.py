"""The min-norm problem: its certificate, its scale, and what lies within its bounds."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_algos.solvers import box_simplex

# The gaps, relative to the largest K_ii and to ||d||^2, below which a search ends. The gap
# bounds ||d - d*||^2 / 2: without the second, d would be known to five digits at best.
_FINAL_GAP = 1e-10
_FINAL_GAP_OF_SQUARED_NORM = 1e-12
# How many times the noise of K the gap may seem to be where a search ends.
FINAL_NOISE = 8

# Norms below this, of a largest norm of 1, count as this: their squares underflow.
_SMALLEST_NORM = 1e-60

EPSILON = np.finfo(np.float64).eps


class Problem(NamedTuple):
    """Minimise 1/2 w'Kw over a box-simplex; the largest K_ii is 1, or 0.

    `noise` bounds the errors of K, float64 [], relative to the norms of its vectors:
    those of float64, or what negative curvature tells, as no Gram matrix has any.
    """

    gram: tf.Tensor
    lower: tf.Tensor
    upper: tf.Tensor
    total: tf.Tensor
    noise: tf.Tensor


def restrict(gram: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """The Gram matrix, with zeros but in the given rows and columns, bool [n]."""
    return tf.where(rows & rows[:, tf.newaxis], gram, tf.zeros_like(gram))


def certificate(problem: Problem, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The Frank-Wolfe gap of weights, and the gap at which the search ends."""
    gradient = tf.linalg.matvec(problem.gram, weights)
    vertex = box_simplex.minimise_linear(
        gradient, problem.lower, problem.upper, problem.total
    )
    difference = weights - vertex
    # The elements of the difference add up to zero only up to rounding, which a large
    # gradient would magnify; what all elements of the gradient share does not matter.
    shared = tf.math.divide_no_nan(dot(gradient, vertex), problem.total)
    gap = tf.maximum(dot(difference, gradient - shared), 0.0)
    rounding = dot(tf.abs(difference), tf.linalg.matvec(tf.abs(problem.gram), weights))
    rounding *= FINAL_NOISE * problem.noise
    final = tf.maximum(_FINAL_GAP_OF_SQUARED_NORM * dot(weights, gradient), rounding)
    return gap, tf.minimum(final, _FINAL_GAP)


def dot(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(left * right)


class Scaled(NamedTuple):
    """The problem for x_i = norm_i * w_i: minimise 1/2 x'Cx with sum(x / norms) given.

    Attributes:
      cosines: C, float64 [n, n].
      ridge: What makes C positive definite beyond its noise, float64 [n, n]. Only
        factorizations have it, so that it shortens steps but does not move their end.
      inverses: 1 / norm_i, float64 [n].
      noise: As in `Problem`.
    """

    cosines: tf.Tensor
    ridge: tf.Tensor
    inverses: tf.Tensor
    noise: tf.Tensor


def scale(problem: Problem) -> Scaled:
    norms = tf.sqrt(tf.maximum(tf.linalg.diag_part(problem.gram), 0.0))
    inverses = 1 / tf.maximum(norms, _SMALLEST_NORM)
    cosines = problem.gram * inverses * inverses[:, tf.newaxis]
    lowest = tf.reduce_min(tf.concat([tf.linalg.eigvalsh(cosines), [0.0]], axis=0))
    noise = tf.maximum(problem.noise, -2 * lowest)
    ridge = noise * tf.eye(tf.size(norms), dtype=tf.float64)
    return Scaled(cosines, ridge, inverses, noise)


def within(problem: Problem, weights: tf.Tensor) -> tf.Tensor:
    """Weights within the bounds and with the right sum, close to given ones.

    What the sum lacks goes to the shortest vectors, which change the mixture least.
    """
    weights = tf.clip_by_value(weights, problem.lower, problem.upper)
    lack = problem.total - tf.reduce_sum(weights)
    room = tf.where(lack > 0, problem.upper - weights, weights - problem.lower)
    moved = box_simplex.minimise_linear(
        tf.linalg.diag_part(problem.gram), tf.zeros_like(room), room, tf.abs(lack)
    )
    weights += tf.sign(lack) * moved
    return tf.clip_by_value(weights, problem.lower, problem.upper)


class Judged(NamedTuple):
    """Weights, float64 [n], with their gap and whether the search ends with them."""

    weights: tf.Tensor
    gap: tf.Tensor
    is_optimal: tf.Tensor


def judge(problem: Problem, weights: tf.Tensor) -> Judged:
    gap, final = certificate(problem, weights)
    return Judged(weights, gap, gap <= final)


def better(best: Judged, other: Judged) -> Judged:
    """The one with the smaller gap; the first if they are equally good."""
    is_better = other.gap < best.gap
    return Judged(
        *(tf.where(is_better, new, old) for new, old in zip(other, best, strict=True))
    )
