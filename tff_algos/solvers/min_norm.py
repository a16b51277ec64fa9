"""The min-norm point: the shortest mixture of vectors, from their Gram matrix.

FedMGDA+ (Hu et al., 2020, arXiv 2006.11489) weights the clients' updates g_i so that
d = sum_i w_i g_i is as short as possible: with no bound but w >= 0 it is the direction
of steepest common descent (Désidéri, 2012). With K_ij = <g_i, g_j> the problem is

    minimise 1/2 w'Kw   over   lower <= w <= upper,  sum(w) = sum(start).

It is solved in two stages, each with the certificate of Frank and Wolfe, the gap
w'Kw - min_v v'Kw >= (w'Kw - optimum) / 2, over the v that are allowed for w:

1. Accelerated projected gradient with restarts (Nesterov, 1983; O'Donoghue and Candès,
   2015) on the centred Gram matrix. Updates share a large mean, which makes the largest
   eigenvalue of K, and with it the number of iterations, large; as differences of
   weights sum to zero, the mean cancels from the problem.
2. Where that stalls (norms over many decades), a primal active-set method (Nocedal and
   Wright, 2006, section 16.5), which steps from face to face of the box, each time
   towards the exact minimiser on the face.
"""

from typing import NamedTuple

from tff_algos import compat  # noqa: F401  # isort: skip

import numpy as np
import tensorflow as tf

from tff_algos.solvers import box_simplex

# The gap, relative to the largest K_ii, below which a solution is accepted, ...
_ACCEPTED_GAP = 1e-3
# ... and below which, and relative to ||d||^2, the search ends. The gap bounds
# ||d - d*||^2 / 2: without the second, d would be known to five digits at best.
_FINAL_GAP = 1e-10
_FINAL_GAP_OF_SQUARED_NORM = 1e-12

# A face costs an eigendecomposition, tens of gradient steps, but one of them takes the
# place of any number of steps once it is the right one.
_MAX_GRADIENT_STEPS = 100
_MAX_FACES = 300

_EPSILON = np.finfo(np.float64).eps


class MinNormSolution(NamedTuple):
    """A solution, with what it takes to judge it.

    Attributes:
      weights: Float64 [n], within the bounds exactly.
      gap: Float64 [], in units of the Gram matrix: an upper bound of half of what
        ||d||^2 exceeds its minimum by. NaN if an argument was not finite.
      iterations: Int32 [], gradient steps and faces together; 0 if the start is
        optimal.
      accepted: Bool [], whether the gap is at most 1e-3 of the largest K_ii. If not,
        the weights are the best that were found: the caller decides what to do.
    """

    weights: tf.Tensor
    gap: tf.Tensor
    iterations: tf.Tensor
    accepted: tf.Tensor


class _Problem(NamedTuple):
    """Minimise 1/2 w'Kw over a box-simplex; the largest K_ii is 1, or 0."""

    gram: tf.Tensor
    lower: tf.Tensor
    upper: tf.Tensor
    total: tf.Tensor


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
    takes_part = tf.not_equal(lower, 0) | tf.not_equal(upper, 0)
    gram = _restrict(gram, takes_part)
    finite = tf.reduce_all(
        [tf.reduce_all(tf.math.is_finite(x)) for x in (gram, lower, upper, start)]
    )
    gram = tf.where(finite, gram, tf.zeros_like(gram))
    largest = tf.reduce_max(tf.concat([tf.linalg.diag_part(gram), [0.0]], axis=0))
    gram = tf.math.divide_no_nan(gram, largest)
    gram = (gram + tf.transpose(gram)) / 2
    problem = _Problem(gram, lower, upper, tf.reduce_sum(start))

    weights, iterations = tf.cond(
        tf.logical_not(finite) | _is_optimal(problem, start),
        lambda: (start, tf.constant(0)),
        lambda: _search(problem, start),
    )
    gap, _ = _certificate(problem, weights)
    gap = tf.where(finite, gap, tf.constant(np.nan, tf.float64))
    return MinNormSolution(weights, gap * largest, iterations, gap <= _ACCEPTED_GAP)


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


def _search(problem: _Problem, start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The weights and the number of iterations that they took."""
    weights, num_steps = _accelerated_gradient(problem, start)
    weights, num_faces = _active_set(problem, weights)
    return weights, num_steps + num_faces


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
    rounding = _dot(
        tf.abs(difference), tf.linalg.matvec(tf.abs(problem.gram), weights)
    ) * (_EPSILON * tf.cast(tf.size(weights) + 8, tf.float64))
    final = tf.maximum(_FINAL_GAP_OF_SQUARED_NORM * _dot(weights, gradient), rounding)
    return gap, tf.minimum(final, _FINAL_GAP)


def _is_optimal(problem: _Problem, weights: tf.Tensor) -> tf.Tensor:
    gap, final = _certificate(problem, weights)
    return gap <= final


def _dot(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(left * right)


def _accelerated_gradient(
    problem: _Problem, start: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Stage 1: the weights and the number of steps."""
    shared = tf.linalg.matvec(problem.gram, start)
    mean = tf.math.divide_no_nan(_dot(start, shared), problem.total)
    centred = problem.gram - shared - shared[:, tf.newaxis] + mean
    # A weight that cannot move would only make the steps shorter.
    centred = _restrict(centred, problem.lower < problem.upper)
    step_size = tf.math.reciprocal_no_nan(tf.linalg.eigvalsh(centred)[-1])
    one = tf.constant(1.0, tf.float64)

    def gradient(weights):
        # That of 1/2 w'Kw but for a constant, as all weights have the same sum.
        return tf.linalg.matvec(centred, weights - start) + shared - mean

    def step(weights, ahead, momentum):
        slope = gradient(ahead)
        following = box_simplex.project(
            ahead - step_size * slope, problem.lower, problem.upper, problem.total
        )
        moved = following - weights
        momentum = tf.where(_dot(slope, moved) > 0, one, momentum)
        next_momentum = (1 + tf.sqrt(1 + 4 * momentum**2)) / 2
        ahead = following + (momentum - 1) / next_momentum * moved
        return following, ahead, next_momentum

    def body(count, weights, *rest):
        return count + 1, *step(weights, *rest)

    count, weights, *_ = tf.while_loop(
        lambda count, weights, *_: tf.logical_not(_is_optimal(problem, weights)),
        body,
        (tf.constant(0), start, start, one),
        maximum_iterations=_MAX_GRADIENT_STEPS,
    )
    return weights, count


class _Face(NamedTuple):
    """Weights, of which those that are not free lie on a bound.

    Attributes:
      weights: Float64 [n].
      free: Bool [n].
      settled: Bool [], whether the weights minimise over the face.
    """

    weights: tf.Tensor
    free: tf.Tensor
    settled: tf.Tensor


def _active_set(problem: _Problem, start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Stage 2: the weights of the smallest gap and the number of faces."""

    def gap_of(weights):
        return _certificate(problem, weights)[0]

    def body(count, best, face, _):
        face, moved_on = _next_face(problem, face)
        better = gap_of(face.weights) < gap_of(best)
        best = tf.where(better, face.weights, best)
        return count + 1, best, face, moved_on | better

    free = (problem.lower < start) & (start < problem.upper)
    count, best, *_ = tf.while_loop(
        lambda count, best, face, goes_on: (
            goes_on & tf.logical_not(_is_optimal(problem, best))
        ),
        body,
        (
            tf.constant(0),
            start,
            _Face(start, free, tf.constant(False)),
            tf.constant(True),
        ),
        maximum_iterations=_MAX_FACES,
    )
    return best, count


def _next_face(problem: _Problem, face: _Face) -> tuple[_Face, tf.Tensor]:
    """The next face, and whether it is new, or its minimiser is (else: refined)."""
    gradient = tf.linalg.matvec(problem.gram, face.weights)
    free, released = _release(problem, face, gradient)
    pivot = _pivot(problem, free)
    direction = _newton_direction(problem.gram, gradient, free, pivot)

    rising = direction > 0
    room = tf.where(rising, problem.upper - face.weights, face.weights - problem.lower)
    infinity = tf.constant(np.inf, tf.float64)
    is_moving = tf.not_equal(direction, 0)
    reach = tf.where(is_moving, room / tf.abs(direction), infinity)
    length = tf.minimum(tf.reduce_min(reach), 1.0)
    blocked = free & (reach <= length)
    free = free & ~blocked

    weights = face.weights + length * direction
    # What rounding took from the sum goes to the pivot, usually the largest weight.
    rest = problem.total - tf.reduce_sum(weights)
    weights = tf.where(_one_hot(pivot, weights), weights + rest, weights)
    weights = tf.clip_by_value(weights, problem.lower, problem.upper)
    bound = tf.where(rising, problem.upper, problem.lower)
    weights = tf.where(blocked, bound, weights)
    moved_on = released | tf.reduce_any(blocked) | tf.logical_not(face.settled)
    return _Face(weights, free, length >= 1.0), moved_on


def _release(
    problem: _Problem, face: _Face, gradient: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """What is free next, bool [n], and whether that is more than before, bool []."""
    lowest = tf.constant(-np.inf, tf.float64)
    # At a vertex nothing is free, and the first to be freed is the weight that is the
    # best to reduce.
    costs = tf.where(face.weights > problem.lower, gradient, lowest)
    is_vertex = tf.logical_not(tf.reduce_any(face.free))
    free = face.free | (is_vertex & _one_hot(tf.argmax(costs), costs))

    level = gradient[_pivot(problem, free)]
    can_rise = face.weights < problem.upper
    gain = tf.where(can_rise, level - gradient, gradient - level)
    is_bound = ~free & (problem.lower < problem.upper)
    gain = tf.where(is_bound, gain, lowest)
    best = tf.argmax(gain)
    released = (face.settled | is_vertex) & (gain[best] > 0)
    return free | (released & _one_hot(best, gain)), released


def _pivot(problem: _Problem, free: tf.Tensor) -> tf.Tensor:
    """The free vector with the smallest norm, int64 []."""
    squares = tf.linalg.diag_part(problem.gram)
    return tf.argmin(tf.where(free, squares, tf.constant(np.inf, tf.float64)))


def _one_hot(index: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return tf.one_hot(index, tf.size(like), True, False, dtype=tf.bool)


def _newton_direction(
    gram: tf.Tensor, gradient: tf.Tensor, free: tf.Tensor, pivot: tf.Tensor
) -> tf.Tensor:
    """The way to the minimiser over the free weights, float64 [n] with the sum 0.

    In the free weights other than the pivot's, which follows from the sum, the problem
    has no constraint and the Gram matrix of the differences from the pivot's vector,
    which is the shortest so that no difference loses a shorter vector. With the
    differences scaled to length 1 it is well conditioned however much the norms
    differ. Curvature that is smaller than its rounding error counts as that large: the
    step is then too short, but still leads down, until a bound blocks it.
    """
    squares = tf.linalg.diag_part(gram)
    to_pivot = gram[pivot]
    differences = gram - to_pivot - to_pivot[:, tf.newaxis] + squares[pivot]
    errors = 4 * _EPSILON * (squares + squares[pivot])
    lengths = tf.sqrt(tf.maximum(tf.linalg.diag_part(differences), errors))
    used = free & ~_one_hot(pivot, gradient)
    scales = tf.where(used, tf.math.reciprocal_no_nan(lengths), tf.zeros_like(lengths))

    scaled = scales * differences * scales[:, tf.newaxis]
    curvatures, axes = tf.linalg.eigh(scaled)
    noise = tf.linalg.matvec(tf.abs(axes), tf.sqrt(errors) * scales, transpose_a=True)
    floor = noise**2 + _EPSILON * tf.cast(tf.size(scales), tf.float64)
    slope = scales * (gradient - gradient[pivot])
    along_axes = tf.linalg.matvec(axes, slope, transpose_a=True)
    along_axes /= tf.maximum(curvatures, floor)
    direction = -scales * tf.linalg.matvec(axes, along_axes)
    return tf.where(_one_hot(pivot, gradient), -tf.reduce_sum(direction), direction)
