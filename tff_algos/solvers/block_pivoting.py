"""Block principal pivoting for the min-norm problem.

Portugal, Júdice, Vicente: "A comparison of block pivoting and interior-point algorithms
for linear least squares problems with nonnegative variables", 1994. Guess which weights
lie on a bound, solve for the others, change all guesses that the solution contradicts
at once, and repeat, until the number of contradicted guesses stops decreasing: with
linearly dependent vectors the search may cycle.
"""

import numpy as np
import tensorflow as tf

from tff_algos.solvers import box_simplex
from tff_algos.solvers.min_norm_problem import (
    Judged,
    Problem,
    Scaled,
    better,
    dot,
    judge,
    within,
)

# The ridge of pivots, in units of the noise: large enough for the ridge, not the noise,
# to decide how equal vectors share their weight.
_SHARING = 2.0**10

_MAX_PIVOTS = 12
# The search ends after this many pivots without fewer contradicted guesses.
_PATIENCE = 3

# The guessed place of a weight: on its lower bound, between bounds, on its upper bound.
_LOWER, _FREE, _UPPER = -1, 0, 1


def solve(
    problem: Problem, scaled: Scaled, start: tf.Tensor
) -> tuple[Judged, tf.Tensor]:
    """Returns the weights of the smallest gap and the number of pivots.

    Args:
      problem: The problem.
      scaled: The same problem, scaled to vectors of length 1.
      start: Weights within the bounds, float64 [n].
    """
    is_free = (problem.lower < start) & (start < problem.upper)
    on_bound = tf.where(start >= problem.upper, _UPPER, _LOWER)
    first = tf.where(is_free, _FREE, on_bound)

    def body(count, best, places, fewest, idle):
        places = _with_one_free(problem, best.weights, places)
        weights, following = _pivot(problem, scaled, places)
        best = better(best, judge(problem, within(problem, weights)))
        num_changed = tf.math.count_nonzero(tf.not_equal(places, following))
        idle = tf.where(num_changed < fewest, 0, idle + 1)
        return count + 1, best, following, tf.minimum(num_changed, fewest), idle

    def goes_on(count, best, places, fewest, idle):
        return ~best.is_optimal & (fewest > 0) & (idle < _PATIENCE)

    count, best, *_ = tf.while_loop(
        goes_on,
        body,
        (
            tf.constant(0),
            judge(problem, start),
            first,
            tf.size(first, tf.int64) + 1,
            tf.constant(0),
        ),
        maximum_iterations=_MAX_PIVOTS,
    )
    return best, count


def _with_one_free(
    problem: Problem, weights: tf.Tensor, places: tf.Tensor
) -> tf.Tensor:
    """Returns the places or, if none is free, those of the best vertex with one free.

    Without a free weight, the sum of the weights would be wrong.
    """
    gradient = tf.linalg.matvec(problem.gram, weights)
    vertex = box_simplex.minimize_linear(
        gradient, problem.lower, problem.upper, problem.total
    )
    raised = tf.where(vertex > problem.lower, gradient, -np.inf)
    dearest = tf.one_hot(tf.argmax(raised), tf.size(raised), True, False)
    bounds = tf.where(vertex >= problem.upper, _UPPER, _LOWER)
    at_vertex = tf.where(dearest, _FREE, bounds)
    return tf.where(tf.reduce_any(tf.equal(places, _FREE)), places, at_vertex)


def _pivot(
    problem: Problem, scaled: Scaled, places: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the optimal unbounded weights for the places, and the next places."""
    free = tf.equal(places, _FREE)
    bound = tf.where(tf.equal(places, _UPPER), problem.upper, problem.lower)
    fixed = tf.where(free, tf.zeros_like(bound), bound)
    rows = tf.where(free)[:, 0]
    cosines = tf.gather(tf.gather(scaled.cosines, rows), rows, axis=1)
    diagonal = tf.linalg.diag_part(cosines) + _SHARING * scaled.noise
    inverses = tf.gather(scaled.inverses, rows)
    pull = tf.gather(tf.linalg.matvec(problem.gram, fixed), rows) * inverses
    sides = tf.stack([-pull, inverses], axis=1)
    factor = tf.linalg.cholesky(tf.linalg.set_diag(cosines, diagonal))
    solved = tf.linalg.cholesky_solve(factor, sides)
    # One step of refinement removes the ridge's error from the solution.
    solved += tf.linalg.cholesky_solve(factor, sides - tf.matmul(cosines, solved))
    level = (problem.total - tf.reduce_sum(fixed) - dot(inverses, solved[:, 0])) / (
        dot(inverses, solved[:, 1])
    )
    found = (solved[:, 0] + level * solved[:, 1]) * inverses
    weights = tf.tensor_scatter_nd_update(fixed, rows[:, tf.newaxis], found)

    gradient = tf.linalg.matvec(problem.gram, weights)
    leaves = tf.where(tf.equal(places, _LOWER), gradient < level, gradient > level)
    leaves &= problem.lower < problem.upper
    stays = tf.where(leaves, _FREE, places)
    meets = tf.where(weights > problem.upper, _UPPER, _FREE)
    meets = tf.where(weights < problem.lower, _LOWER, meets)
    return weights, tf.where(free, meets, stays)
