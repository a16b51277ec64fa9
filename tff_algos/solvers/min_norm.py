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

from tff_algos import compat  # noqa: F401  # isort: skip

import numpy as np
import tensorflow as tf

from tff_algos.solvers import box_simplex

# The gap, relative to ||d||^2, below which a solution is accepted, ...
_ACCEPTED_GAP = 1e-6
# ... and those, relative to the largest K_ii and to ||d||^2, below which the search ends.
# The gap bounds ||d - d*||^2 / 2: without the second, d would be known to five digits at
# best.
_FINAL_GAP = 1e-10
_FINAL_GAP_OF_SQUARED_NORM = 1e-12

# How many times the noise of K the gap may seem to be where a search ends, and where a
# solution is accepted.
_FINAL_NOISE = 8
_ACCEPTED_NOISE = 64

# The ridge of pivots, in units of the noise: by so much more than by the noise is it
# decided how equal vectors share their weight.
_SHARING = 2.0**10

_MAX_PIVOTS = 12
_MAX_INTERIOR_STEPS = 80
# Interior steps without a smaller gap, after which there will be none.
_PATIENCE = 6
# Interior steps go this far towards the bounds, and end at products this small.
_STEP_TO_BOUNDARY = 0.995
_SMALLEST_PRODUCT = 1e-280
# Norms below this, of a largest norm of 1, count as this: their squares underflow.
_SMALLEST_NORM = 1e-60

_EPSILON = np.finfo(np.float64).eps


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


class _Problem(NamedTuple):
    """Minimise 1/2 w'Kw over a box-simplex; the largest K_ii is 1, or 0.

    `noise` bounds the errors of K, float64 [], relative to the norms of its vectors:
    those of float64, or what negative curvature tells, as no Gram matrix has any.
    """

    gram: tf.Tensor
    lower: tf.Tensor
    upper: tf.Tensor
    total: tf.Tensor
    noise: tf.Tensor


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
    gram = _restrict(gram, takes_part)
    finite = tf.reduce_all(
        [tf.reduce_all(tf.math.is_finite(x)) for x in (gram, lower, upper, start)]
    )
    gram = tf.where(finite, gram, tf.zeros_like(gram))
    largest = tf.reduce_max(tf.concat([tf.linalg.diag_part(gram), [0.0]], axis=0))
    gram = tf.math.divide_no_nan(gram, largest)
    gram = (gram + tf.transpose(gram)) / 2
    rounding = _EPSILON * tf.cast(tf.size(start) + 8, tf.float64)
    problem = _Problem(gram, lower, upper, tf.reduce_sum(start), rounding)

    weights, iterations, noise = tf.cond(
        tf.logical_not(finite) | _judge(problem, start).is_optimal,
        lambda: (start, tf.constant(0), rounding),
        lambda: _search(problem, start),
    )
    gap, final = _certificate(problem._replace(noise=noise), weights)
    gap = tf.where(finite, gap, tf.constant(np.nan, tf.float64))
    square = _dot(weights, tf.linalg.matvec(gram, weights))
    # Weights are known to the rounding error of their sum, and d to that of the longest.
    zero = (4 * _EPSILON * problem.total) ** 2
    noise = _ACCEPTED_NOISE / _FINAL_NOISE * final
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


def _restrict(gram: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """The Gram matrix, with zeros but in the given rows and columns, bool [n]."""
    return tf.where(rows & rows[:, tf.newaxis], gram, tf.zeros_like(gram))


def _search(
    problem: _Problem, start: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The weights, the number of iterations that they took, and the noise found."""
    scaled = _scale(problem)
    problem = problem._replace(noise=scaled.noise)
    pivoted, num_pivots = _block_pivoting(problem, scaled, start)
    weights, num_steps = tf.cond(
        pivoted.is_optimal,
        lambda: (pivoted.weights, tf.constant(0)),
        lambda: _interior_point(problem, scaled, pivoted),
    )
    return weights, num_pivots + num_steps, scaled.noise


def _certificate(problem: _Problem, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The Frank-Wolfe gap of weights, and the gap at which the search ends."""
    gradient = tf.linalg.matvec(problem.gram, weights)
    vertex = box_simplex.minimise_linear(
        gradient, problem.lower, problem.upper, problem.total
    )
    difference = weights - vertex
    # The elements of the difference add up to zero only up to rounding, which a large
    # gradient would magnify; what all elements of the gradient share does not matter.
    shared = tf.math.divide_no_nan(_dot(gradient, vertex), problem.total)
    gap = tf.maximum(_dot(difference, gradient - shared), 0.0)
    rounding = _dot(tf.abs(difference), tf.linalg.matvec(tf.abs(problem.gram), weights))
    rounding *= _FINAL_NOISE * problem.noise
    final = tf.maximum(_FINAL_GAP_OF_SQUARED_NORM * _dot(weights, gradient), rounding)
    return gap, tf.minimum(final, _FINAL_GAP)


def _dot(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(left * right)


class _Scaled(NamedTuple):
    """The problem for x_i = norm_i * w_i: minimise 1/2 x'Cx with sum(x / norms) given.

    Attributes:
      cosines: C, float64 [n, n].
      ridge: What makes C positive definite beyond its noise, float64 [n, n]. Only
        factorizations have it, so that it shortens steps but does not move their end.
      inverses: 1 / norm_i, float64 [n].
      noise: As in `_Problem`.
    """

    cosines: tf.Tensor
    ridge: tf.Tensor
    inverses: tf.Tensor
    noise: tf.Tensor


def _scale(problem: _Problem) -> _Scaled:
    norms = tf.sqrt(tf.maximum(tf.linalg.diag_part(problem.gram), 0.0))
    inverses = 1 / tf.maximum(norms, _SMALLEST_NORM)
    cosines = problem.gram * inverses * inverses[:, tf.newaxis]
    lowest = tf.reduce_min(tf.concat([tf.linalg.eigvalsh(cosines), [0.0]], axis=0))
    noise = tf.maximum(problem.noise, -2 * lowest)
    ridge = noise * tf.eye(tf.size(norms), dtype=tf.float64)
    return _Scaled(cosines, ridge, inverses, noise)


def _within(problem: _Problem, weights: tf.Tensor) -> tf.Tensor:
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


class _Judged(NamedTuple):
    """Weights, float64 [n], with their gap and whether the search ends with them."""

    weights: tf.Tensor
    gap: tf.Tensor
    is_optimal: tf.Tensor


def _judge(problem: _Problem, weights: tf.Tensor) -> _Judged:
    gap, final = _certificate(problem, weights)
    return _Judged(weights, gap, gap <= final)


def _better(best: _Judged, other: _Judged) -> _Judged:
    """The one with the smaller gap; the first if they are equally good."""
    is_better = other.gap < best.gap
    return _Judged(
        *(tf.where(is_better, new, old) for new, old in zip(other, best, strict=True))
    )


# Where a weight is guessed to be: on its lower bound, between the bounds, on its upper.
_LOWER, _FREE, _UPPER = -1, 0, 1


def _block_pivoting(
    problem: _Problem, scaled: _Scaled, start: tf.Tensor
) -> tuple[_Judged, tf.Tensor]:
    """Stage 1: the weights of the smallest gap and the number of pivots."""
    is_free = (problem.lower < start) & (start < problem.upper)
    on_bound = tf.where(start >= problem.upper, _UPPER, _LOWER)
    first = tf.where(is_free, _FREE, on_bound)

    def body(count, best, places, _):
        places = _with_one_free(problem, best.weights, places)
        weights, following = _pivot(problem, scaled, places)
        best = _better(best, _judge(problem, _within(problem, weights)))
        changed = tf.reduce_any(tf.not_equal(places, following))
        return count + 1, best, following, changed

    count, best, *_ = tf.while_loop(
        lambda count, best, places, goes_on: goes_on & tf.logical_not(best.is_optimal),
        body,
        (tf.constant(0), _judge(problem, start), first, tf.constant(True)),
        maximum_iterations=_MAX_PIVOTS,
    )
    return best, count


def _with_one_free(
    problem: _Problem, weights: tf.Tensor, places: tf.Tensor
) -> tf.Tensor:
    """The places; where all weights lie on bounds, those of the best vertex.

    With nothing free, the sum of the weights would not come out right.
    """
    gradient = tf.linalg.matvec(problem.gram, weights)
    vertex = box_simplex.minimise_linear(
        gradient, problem.lower, problem.upper, problem.total
    )
    raised = tf.where(vertex > problem.lower, gradient, -np.inf)
    dearest = tf.one_hot(tf.argmax(raised), tf.size(raised), True, False)
    bounds = tf.where(vertex >= problem.upper, _UPPER, _LOWER)
    at_vertex = tf.where(dearest, _FREE, bounds)
    return tf.where(tf.reduce_any(tf.equal(places, _FREE)), places, at_vertex)


def _pivot(
    problem: _Problem, scaled: _Scaled, places: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Weights that are optimal for the places but for the bounds, and the next places."""
    free = tf.equal(places, _FREE)
    bound = tf.where(tf.equal(places, _UPPER), problem.upper, problem.lower)
    fixed = tf.where(free, tf.zeros_like(bound), bound)
    rows = tf.where(free)[:, 0]
    cosines = tf.gather(tf.gather(scaled.cosines, rows), rows, axis=1)
    ridge = _SHARING * scaled.noise * tf.eye(tf.size(rows), dtype=tf.float64)
    inverses = tf.gather(scaled.inverses, rows)
    pull = tf.gather(tf.linalg.matvec(problem.gram, fixed), rows) * inverses
    sides = tf.stack([-pull, inverses], axis=1)
    factor = tf.linalg.cholesky(cosines + ridge)
    solved = tf.linalg.cholesky_solve(factor, sides)
    # Without the ridge, which has done what it shall.
    solved += tf.linalg.cholesky_solve(factor, sides - tf.matmul(cosines, solved))
    level = (problem.total - tf.reduce_sum(fixed) - _dot(inverses, solved[:, 0])) / (
        _dot(inverses, solved[:, 1])
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


class _Interior(NamedTuple):
    """A point of the interior-point method, for x, C and c = 1 / norms.

    Attributes:
      x: Float64 [n], strictly between the bounds; 0 where a weight cannot move.
      level: The multiplier of the sum, float64 [].
      above: x minus its lower bound, float64 [n], > 0.
      below: The upper bound minus x, float64 [n], > 0.
      push_up: The multipliers of the lower bounds, float64 [n], > 0.
      push_down: Those of the upper bounds, float64 [n], > 0.
    """

    x: tf.Tensor
    level: tf.Tensor
    above: tf.Tensor
    below: tf.Tensor
    push_up: tf.Tensor
    push_down: tf.Tensor


class _InteriorProblem(NamedTuple):
    """Minimise 1/2 x'Cx + pull'x with c'x given, of the weights that can move."""

    moves: tf.Tensor
    cosines: tf.Tensor
    ridge: tf.Tensor
    pull: tf.Tensor
    inverses: tf.Tensor
    total: tf.Tensor


def _interior_point(
    problem: _Problem, scaled: _Scaled, best: _Judged
) -> tuple[tf.Tensor, tf.Tensor]:
    """Stage 2: the weights of the smallest gap, `best` if none, and the number of steps."""
    interior, first = _centre(problem, scaled)

    def weights_of(point):
        weights = problem.lower + point.above * scaled.inverses
        return _within(problem, tf.where(interior.moves, weights, problem.lower))

    def body(count, best, point, least, idle):
        point = _interior_step(interior, point)
        found = _judge(problem, weights_of(point))
        idle = tf.where(found.gap < least, 0, idle + 1)
        least = tf.minimum(found.gap, least)
        return count + 1, _better(best, found), point, least, idle

    def goes_on(count, best, point, least, idle):
        ended = _mean_product(interior, point) <= _SMALLEST_PRODUCT
        return ~(best.is_optimal | ended | (idle >= _PATIENCE))

    none = tf.constant(np.inf, tf.float64)
    count, best, *_ = tf.while_loop(
        goes_on,
        body,
        (tf.constant(0), best, first, none, tf.constant(0)),
        maximum_iterations=_MAX_INTERIOR_STEPS,
    )
    return best.weights, count


def _centre(problem: _Problem, scaled: _Scaled) -> tuple[_InteriorProblem, _Interior]:
    """The problem of the weights that can move, and a point in the middle of it."""
    moves = problem.lower < problem.upper
    nothing, one = tf.zeros_like(problem.lower), tf.ones_like(problem.lower)
    room = problem.upper - problem.lower
    share = tf.math.divide_no_nan(
        problem.total - tf.reduce_sum(problem.lower), tf.reduce_sum(room)
    )
    norms = 1 / scaled.inverses
    fixed = tf.where(moves, nothing, problem.lower)
    cosines = _restrict(scaled.cosines, moves)
    pull = tf.where(
        moves, tf.linalg.matvec(problem.gram, fixed) * scaled.inverses, nothing
    )
    inverses = tf.where(moves, scaled.inverses, nothing)
    total = problem.total - tf.reduce_sum(fixed)
    interior = _InteriorProblem(moves, cosines, scaled.ridge, pull, inverses, total)

    x = tf.where(moves, (problem.lower + share * room) * norms, nothing)
    above = tf.where(moves, share * room * norms, one)
    below = tf.where(moves, (1 - share) * room * norms, one)
    gradient = tf.linalg.matvec(cosines, x) + pull
    square = tf.maximum(_dot(x, gradient), _SMALLEST_PRODUCT)
    product = square / tf.cast(tf.size(x), tf.float64)
    level = tf.math.divide_no_nan(square, total)
    point = _Interior(x, level, above, below, product / above, product / below)
    return interior, point


def _mean_product(interior: _InteriorProblem, point: _Interior) -> tf.Tensor:
    """How far a point is from the boundary, squared, on average, float64 []."""
    products = point.above * point.push_up + point.below * point.push_down
    products = tf.where(interior.moves, products, tf.zeros_like(products))
    count = tf.math.count_nonzero(interior.moves, dtype=tf.float64)
    return tf.math.divide_no_nan(tf.reduce_sum(products), 2 * count)


def _interior_step(interior: _InteriorProblem, point: _Interior) -> _Interior:
    """A predictor and a corrector with one factorization."""
    stiffness = point.push_up / point.above + point.push_down / point.below
    one = tf.ones_like(stiffness)
    diagonal = tf.linalg.diag(tf.where(interior.moves, stiffness, one))
    factor = tf.linalg.cholesky(interior.cosines + interior.ridge + diagonal)

    def solve_with(side):
        return tf.linalg.cholesky_solve(factor, side[:, tf.newaxis])[:, 0]

    gradient = tf.linalg.matvec(interior.cosines, point.x) + interior.pull
    residual = gradient - interior.inverses * point.level
    residual -= point.push_up - point.push_down
    lacking = interior.total - _dot(interior.inverses, point.x)
    along_sum = solve_with(interior.inverses)

    def direction(up, down):
        """The Newton step for products that change by `up` and `down`."""
        side = up / point.above - down / point.below - residual
        moved = solve_with(tf.where(interior.moves, side, tf.zeros_like(side)))
        level = (lacking - _dot(interior.inverses, moved)) / (
            _dot(interior.inverses, along_sum)
        )
        moved = tf.where(
            interior.moves, moved + level * along_sum, tf.zeros_like(moved)
        )
        push_up = (up - point.push_up * moved) / point.above
        push_down = (down + point.push_down * moved) / point.below
        return _Interior(moved, level, moved, -moved, push_up, push_down)

    def lengths(step):
        """How far the point and the multipliers may go along it."""
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
    # A weight that cannot move keeps what it has: nothing shall be zero.
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
    """The multiple of the changes, 1 at most, that leaves no value negative."""
    multiples = tf.where(changes < 0, -values / changes, tf.ones_like(values))
    return tf.reduce_min(tf.concat([multiples, [1.0]], axis=0))
