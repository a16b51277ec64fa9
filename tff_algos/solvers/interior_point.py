"""A primal-dual interior-point method for the min-norm problem.

Mehrotra: "On the implementation of a primal-dual interior point method", 1992: a
predictor and a corrector with one Cholesky factorization per step. It takes about
thirty steps for any vectors, including linearly dependent ones.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_algos.solvers.min_norm_problem import (
    Judged,
    Problem,
    Scaled,
    better,
    dot,
    judge,
    restrict,
    within,
)

_MAX_STEPS = 80
# The search ends after this many steps without a smaller gap.
_PATIENCE = 6
# Steps go this fraction of the way to the bounds; products are at least this large.
_STEP_TO_BOUNDARY = 0.995
_SMALLEST_PRODUCT = 1e-280


class _Interior(NamedTuple):
    """A point of the interior-point method, for x, C and c = 1 / norms.

    Attributes:
      x: float64 [n], strictly between the bounds; 0 for fixed weights.
      level: The multiplier of the sum, float64 [].
      above: x minus its lower bound, float64 [n], > 0.
      below: The upper bound minus x, float64 [n], > 0.
      push_up: The multipliers of the lower bounds, float64 [n], > 0.
      push_down: The multipliers of the upper bounds, float64 [n], > 0.
    """

    x: tf.Tensor
    level: tf.Tensor
    above: tf.Tensor
    below: tf.Tensor
    push_up: tf.Tensor
    push_down: tf.Tensor


class _InteriorProblem(NamedTuple):
    """Minimize 1/2 x'Cx + pull'x with c'x given, over weights that are not fixed.

    `diagonal` is that of C plus a ridge, which makes C positive definite beyond its
    noise. It is used only in factorizations, where it shortens steps but does not move
    their fixed point.
    """

    moves: tf.Tensor
    cosines: tf.Tensor
    diagonal: tf.Tensor
    pull: tf.Tensor
    inverses: tf.Tensor
    total: tf.Tensor


def solve(
    problem: Problem, scaled: Scaled, best: Judged
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the weights of the smallest gap and the number of steps.

    Args:
      problem: The problem.
      scaled: The same problem, scaled to vectors of length 1.
      best: The weights to return if no step leads to a smaller gap.
    """
    interior, first = _center(problem, scaled)

    def weights_of(point):
        weights = problem.lower + point.above * scaled.inverses
        return within(problem, tf.where(interior.moves, weights, problem.lower))

    def body(count, best, point, least, idle):
        point = _step(interior, point)
        found = judge(problem, weights_of(point))
        idle = tf.where(found.gap < least, 0, idle + 1)
        least = tf.minimum(found.gap, least)
        return count + 1, better(best, found), point, least, idle

    def goes_on(count, best, point, least, idle):
        ended = _mean_product(interior, point) <= _SMALLEST_PRODUCT
        return ~(best.is_optimal | ended | (idle >= _PATIENCE))

    none = tf.constant(np.inf, tf.float64)
    count, best, *_ = tf.while_loop(
        goes_on,
        body,
        (tf.constant(0), best, first, none, tf.constant(0)),
        maximum_iterations=_MAX_STEPS,
    )
    return best.weights, count


def _center(problem: Problem, scaled: Scaled) -> tuple[_InteriorProblem, _Interior]:
    """Returns the problem of the weights that are not fixed, and an interior point."""
    moves = problem.lower < problem.upper
    nothing, one = tf.zeros_like(problem.lower), tf.ones_like(problem.lower)
    room = problem.upper - problem.lower
    share = tf.math.divide_no_nan(
        problem.total - tf.reduce_sum(problem.lower), tf.reduce_sum(room)
    )
    norms = 1 / scaled.inverses
    fixed = tf.where(moves, nothing, problem.lower)
    cosines = restrict(scaled.cosines, moves)
    pull = tf.where(
        moves, tf.linalg.matvec(problem.gram, fixed) * scaled.inverses, nothing
    )
    inverses = tf.where(moves, scaled.inverses, nothing)
    total = problem.total - tf.reduce_sum(fixed)
    diagonal = tf.linalg.diag_part(cosines) + scaled.noise
    interior = _InteriorProblem(moves, cosines, diagonal, pull, inverses, total)

    x = tf.where(moves, (problem.lower + share * room) * norms, nothing)
    above = tf.where(moves, share * room * norms, one)
    below = tf.where(moves, (1 - share) * room * norms, one)
    gradient = tf.linalg.matvec(cosines, x) + pull
    square = tf.maximum(dot(x, gradient), _SMALLEST_PRODUCT)
    product = square / tf.cast(tf.size(x), tf.float64)
    level = tf.math.divide_no_nan(square, total)
    point = _Interior(x, level, above, below, product / above, product / below)
    return interior, point


def _mean_product(interior: _InteriorProblem, point: _Interior) -> tf.Tensor:
    """Returns the mean complementarity product, float64 []."""
    products = point.above * point.push_up + point.below * point.push_down
    products = tf.where(interior.moves, products, tf.zeros_like(products))
    count = tf.math.count_nonzero(interior.moves, dtype=tf.float64)
    return tf.math.divide_no_nan(tf.reduce_sum(products), 2 * count)


def _step(interior: _InteriorProblem, point: _Interior) -> _Interior:
    """Takes a predictor-corrector step with one factorization."""
    stiffness = point.push_up / point.above + point.push_down / point.below
    one = tf.ones_like(stiffness)
    diagonal = interior.diagonal + tf.where(interior.moves, stiffness, one)
    factor = tf.linalg.cholesky(tf.linalg.set_diag(interior.cosines, diagonal))

    gradient = tf.linalg.matvec(interior.cosines, point.x) + interior.pull
    residual = gradient - interior.inverses * point.level
    residual -= point.push_up - point.push_down
    lacking = interior.total - dot(interior.inverses, point.x)

    def direction(up, down):
        """Returns the Newton step that changes the products by `up` and `down`."""
        side = up / point.above - down / point.below - residual
        side = tf.where(interior.moves, side, tf.zeros_like(side))
        sides = tf.stack([side, interior.inverses], axis=1)
        moved, along_sum = tf.unstack(tf.linalg.cholesky_solve(factor, sides), axis=1)
        level = (lacking - dot(interior.inverses, moved)) / (
            dot(interior.inverses, along_sum)
        )
        moved = tf.where(
            interior.moves, moved + level * along_sum, tf.zeros_like(moved)
        )
        push_up = (up - point.push_up * moved) / point.above
        push_down = (down + point.push_down * moved) / point.below
        return _Interior(moved, level, moved, -moved, push_up, push_down)

    def lengths(step):
        """Returns the largest primal and dual step lengths."""
        return tf.minimum(
            _reach(point.above, step.above), _reach(point.below, step.below)
        ), tf.minimum(
            _reach(point.push_up, step.push_up), _reach(point.push_down, step.push_down)
        )

    up, down = point.above * point.push_up, point.below * point.push_down
    predictor = direction(-up, -down)
    product = _mean_product(interior, point)
    ahead = _mean_product(interior, _advance(point, predictor, *lengths(predictor)))
    target = tf.maximum(ahead / product, 0.0) ** 3 * product
    corrector = direction(
        target - up - predictor.above * predictor.push_up,
        target - down - predictor.below * predictor.push_down,
    )
    primal, dual = lengths(corrector)
    following = _advance(
        point, corrector, _STEP_TO_BOUNDARY * primal, _STEP_TO_BOUNDARY * dual
    )
    # Slacks of fixed weights stay 1, because divisors must not be zero.
    return _Interior(
        following.x,
        following.level,
        *(
            tf.where(interior.moves, new, one)
            for new in (following.above, following.below)
        ),
        *following[4:],
    )


def _advance(
    point: _Interior, step: _Interior, primal: tf.Tensor, dual: tf.Tensor
) -> _Interior:
    return _Interior(
        point.x + primal * step.x,
        point.level + dual * step.level,
        point.above + primal * step.above,
        point.below + primal * step.below,
        point.push_up + dual * step.push_up,
        point.push_down + dual * step.push_down,
    )


def _reach(values: tf.Tensor, changes: tf.Tensor) -> tf.Tensor:
    """Returns the largest multiple of the changes, up to 1, that keeps values >= 0."""
    multiples = tf.where(changes < 0, -values / changes, tf.ones_like(values))
    return tf.reduce_min(tf.concat([multiples, [1.0]], axis=0))
