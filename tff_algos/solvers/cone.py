"""The projection onto a cone given by rows, computed from inner products.

GradMA (Luo et al., 2023, arXiv 2302.14307) corrects a gradient or a momentum g as
little as possible, so that it opposes none of the rows G_i, which are earlier gradients
or remembered updates:

    minimize 1/2 ||v - g||^2   over v with   <G_i, v> >= qp_margin ||g|| ||G_i|| for all i.

The solution is v = g + sum_i z_i G_i for the multipliers z of the dual problem

    minimize 1/2 z'Qz + p'z   over z >= 0,   Q_ij = <G_i, G_j>,
                                             p_i = <G_i, g> - qp_margin ||g|| ||G_i||.

Rows of any length d enter only through Q and p. v does not depend on the norms of the
rows and is proportional to the norm of g: all norms are divided out first. With a
qp_margin of 0, v is the projection of g onto a cone, and z solves the non-negative
least squares problem min ||g + sum_i z_i G_i||. If the rows are linearly dependent, v
is still unique, but z is not.

Both solvers judge z by the residual of the Karush-Kuhn-Tucker conditions, with
a = Qz + p, the slack of the constraints on <G_i, v>:

    z_i >= 0,   a_i >= 0,   z_i a_i = 0   if and only if   max_i |min(z_i, a_i)| = 0.
"""

import itertools
from typing import Literal, NamedTuple

import numpy as np
import tensorflow as tf

# Whether the tensors of a gradient are projected together or each by itself.
QpScope = Literal["global", "per_tensor"]

# A row is numerically zero if its norm is at most this, relative to the largest, ...
_SMALLEST_ROW = 1e-12
# ... and g is numerically zero if its norm is at most this.
_SMALLEST_NORM = 1e-30

# The residual up to which a solution is accepted, and the sum of the multipliers, for
# rows and g of length 1, above which the dual problem is treated as unbounded: no v
# exists.
_ACCEPTED_RESIDUAL = 1e-3
_LARGEST_SUM = 1e8

_MAX_STEPS_PER_ROW = 10
_MAX_FEW_ROWS = 3

# Values below this, relative to 1, may be pure rounding errors.
_ROUNDING = 4 * np.finfo(np.float64).eps


# The same for inner products of vectors that were computed in float32.
FLOAT32_TOLERANCE = 1e-6


class ConeSolution(NamedTuple):
    """A solution and its diagnostics.

    Attributes:
      multipliers: float64 [n], z >= 0, in units of the norm of g per norm of G_i: v is
        g + sum_i multipliers[i] * G_i. Zeros, so that v = g, if not accepted.
      residual: float64 [], of the conditions above, for rows and g of length 1 and
        before a solution that is not accepted is zeroed. NaN if g is not finite.
      iterations: int32 [], steps of the search; 0 if g itself is the solution.
      accepted: bool [], whether the residual is at most 1e-3 and the multipliers, for
        rows and g of length 1, add up to at most 1e8. A larger sum means that no v
        exists: with a qp_margin > 0 and opposing rows, the constraints are infeasible.
      dropped_rows: int32 [], the number of rows excluded because they are not finite.
    """

    multipliers: tf.Tensor
    residual: tf.Tensor
    iterations: tf.Tensor
    accepted: tf.Tensor
    dropped_rows: tf.Tensor


class _Problem(NamedTuple):
    """Minimize 1/2 z'Qz + p'z over z >= 0, for rows and g of length 1.

    Attributes:
      gram: Q, float64 [n, n]; 0 for excluded rows.
      slopes: p, float64 [n]; 0 for excluded rows.
      units: float64 [n], factors that convert z to the original rows and g.
      finite: bool [], whether g and the qp_margin are finite.
      dropped_rows: int32 [], as in `ConeSolution`.
    """

    gram: tf.Tensor
    slopes: tf.Tensor
    units: tf.Tensor
    finite: tf.Tensor
    dropped_rows: tf.Tensor


def solve(
    gram: tf.Tensor,
    products: tf.Tensor,
    squared_norm: tf.Tensor,
    qp_margin: tf.Tensor | float = 0.0,
    present: tf.Tensor | None = None,
) -> ConeSolution:
    """Returns the multipliers of the projection onto the cone of n rows.

    The active-set method of Lawson and Hanson (1974) for non-negative least squares,
    applied to the Gram matrix. Pure TensorFlow and deterministic, for any n >= 0, which
    may be unknown until run time.

    Rows that are not finite or whose norm is at most 1e-12 of the largest get the
    multiplier 0 and have no effect. The multipliers are exactly zero, with no
    iteration, if all p_i >= 0, if there are no rows, or if ||g|| <= 1e-30.

    Args:
      gram: float [n, n], the inner products of the rows; of a matrix that is not
        symmetric, the symmetric part is used. Sum them in float64: errors of float32
        make dependent rows contradict each other, which costs digits of v.
      products: float [n], the inner products <G_i, g>.
      squared_norm: float [], ||g||^2.
      qp_margin: float [], the smallest allowed <G_i, v> / (||g|| ||G_i||).
      present: bool [n], the rows to include, by default all; the values of other rows
        are ignored.

    Returns:
      The solution; not accepted if g or the qp_margin is not finite.

    Raises:
      ValueError: If the shapes, as far as they are known, are inconsistent.
    """
    problem = _normalize(gram, products, squared_norm, qp_margin, present)
    multipliers, iterations = _traced_active_set(problem)
    multipliers.set_shape(problem.slopes.shape)
    return _solution(problem, multipliers, iterations)


def solve_few(
    gram: tf.Tensor,
    products: tf.Tensor,
    squared_norm: tf.Tensor,
    qp_margin: tf.Tensor | float = 0.0,
    tolerance: float = _ROUNDING,
) -> ConeSolution:
    """Solves the problem of `solve` for up to three rows, without control flow.

    All 2^n sets of active rows are solved at once in closed form; the smallest set that
    is optimal up to the tolerance is chosen. Intended for one problem per client and
    local step; runs under `tf.vectorized_map`.

    If two rows are opposite up to rounding errors, the cone's width and the exact
    projection are determined by these errors alone. A tolerance above the errors makes
    one of the two rows inactive instead.

    Args:
      gram: float [n, n], as in `solve`, with a static n <= 3.
      products: float [n], the inner products <G_i, g>.
      squared_norm: float [], ||g||^2.
      qp_margin: float [], as in `solve`.
      tolerance: The residual up to which a set of active rows is optimal, for rows and
        g of length 1 and relative to 1 + the sum of the multipliers; by default
        float64's rounding error. Use `FLOAT32_TOLERANCE` for rows computed in float32.

    Returns:
      The solution; its number of iterations is 1, or 0 if g itself is the solution.

    Raises:
      ValueError: If n is unknown or larger than 3, or the shapes are inconsistent.
    """
    products = _as_float64(products)
    size = products.shape[0] if products.shape.rank == 1 else None
    if size is None or size > _MAX_FEW_ROWS:
        raise ValueError(
            f"Expected products to have a static shape [n] with n <= {_MAX_FEW_ROWS}, "
            f"found {products.shape}; use solve for other numbers of rows."
        )
    problem = _normalize(gram, products, squared_norm, qp_margin, None)
    return _solution(problem, *_best_active_set(problem, tolerance))


def _normalize(
    gram: tf.Tensor,
    products: tf.Tensor,
    squared_norm: tf.Tensor,
    qp_margin: tf.Tensor | float,
    present: tf.Tensor | None,
) -> _Problem:
    gram, products, squared_norm, qp_margin = map(
        _as_float64, (gram, products, squared_norm, qp_margin)
    )
    present = tf.ones_like(products, tf.bool) if present is None else present
    present = tf.convert_to_tensor(present, tf.bool)
    _check_shapes(gram, products, squared_norm, qp_margin, present)

    usable = present & _is_finite_row(gram, products, present)
    zeros = tf.zeros_like(products)
    squares = tf.where(usable, tf.linalg.diag_part(gram), zeros)
    norms = tf.sqrt(tf.maximum(squares, 0.0))
    largest = tf.reduce_max(tf.concat([norms, [0.0]], axis=0))
    takes_part = norms > _SMALLEST_ROW * largest
    inverses = tf.math.reciprocal_no_nan(tf.where(takes_part, norms, zeros))

    pairs = takes_part & takes_part[:, tf.newaxis]
    gram = tf.where(pairs, gram, tf.zeros_like(gram))
    gram = gram * inverses * inverses[:, tf.newaxis]
    gram = (gram + tf.transpose(gram)) / 2

    norm = tf.sqrt(squared_norm)
    finite = tf.math.is_finite(norm) & tf.math.is_finite(qp_margin)
    takes_part &= finite & (norm > _SMALLEST_NORM)
    cosines = tf.where(takes_part, products, zeros) * inverses / norm
    slopes = tf.where(takes_part, cosines - qp_margin, zeros)
    units = tf.where(takes_part, norm * inverses, zeros)
    dropped_rows = tf.math.count_nonzero(present & ~usable, dtype=tf.int32)
    return _Problem(gram, slopes, units, finite, dropped_rows)


def _as_float64(value: tf.Tensor | float) -> tf.Tensor:
    # Without the hint, a Python number would be rounded to float32.
    return tf.cast(tf.convert_to_tensor(value, dtype_hint=tf.float64), tf.float64)


def _check_shapes(
    gram: tf.Tensor,
    products: tf.Tensor,
    squared_norm: tf.Tensor,
    qp_margin: tf.Tensor,
    present: tf.Tensor,
) -> None:
    size = products.shape
    for name, tensor, shape in (
        ("products", products, tf.TensorShape([None])),
        ("gram", gram, size + size),
        ("squared_norm", squared_norm, tf.TensorShape([])),
        ("qp_margin", qp_margin, tf.TensorShape([])),
        ("present", present, size),
    ):
        if not tensor.shape.is_compatible_with(shape):
            raise ValueError(
                f"Expected {name} to have the shape {shape}, found {tensor.shape}."
            )


def _is_finite_row(
    gram: tf.Tensor, products: tf.Tensor, present: tf.Tensor
) -> tf.Tensor:
    """Returns which rows have finite inner products with each other and with g."""
    squares = tf.linalg.diag_part(gram)
    # A non-finite row makes the inner products of all other rows with it non-finite;
    # its own square distinguishes it from them.
    candidate = present & tf.math.is_finite(squares) & tf.math.is_finite(products)
    is_finite = tf.math.is_finite(gram + tf.transpose(gram))
    return candidate & tf.reduce_all(is_finite | ~candidate, axis=1)


def _solution(
    problem: _Problem, multipliers: tf.Tensor, iterations: tf.Tensor
) -> ConeSolution:
    """Returns the solution, from float64 [n] multipliers for rows and g of length 1."""
    residual = _residual(multipliers, _gradient(problem, multipliers))
    is_bounded = tf.reduce_sum(multipliers) <= _LARGEST_SUM
    accepted = problem.finite & is_bounded & (residual <= _ACCEPTED_RESIDUAL)
    multipliers = tf.where(
        accepted, multipliers * problem.units, tf.zeros_like(multipliers)
    )
    residual = tf.where(problem.finite, residual, tf.constant(np.nan, tf.float64))
    return ConeSolution(
        multipliers, residual, iterations, accepted, problem.dropped_rows
    )


def _gradient(problem: _Problem, multipliers: tf.Tensor) -> tf.Tensor:
    """Returns a = Qz + p, float64 [..., n], for z of the same shape."""
    return tf.linalg.matvec(problem.gram, multipliers) + problem.slopes


def _residual(multipliers: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Returns the largest violation of the conditions, for z >= 0, float64 [...]."""
    violations = tf.abs(tf.minimum(multipliers, gradient))
    # Without rows, the maximum would be -infinity.
    return tf.maximum(tf.reduce_max(violations, axis=-1), 0.0)


def _make_convex(problem: _Problem) -> _Problem:
    """Returns the problem without negative curvature, which is due to rounding errors.

    The most negative curvature measures the size of the errors. The smallest curvature
    becomes that large, so that errors of p cannot make z grow either.
    """
    lowest = tf.reduce_min(tf.concat([tf.linalg.eigvalsh(problem.gram), [0.0]], axis=0))
    shift = -2 * lowest * tf.eye(tf.size(problem.slopes), dtype=tf.float64)
    return problem._replace(gram=problem.gram + shift)


class _Iterate(NamedTuple):
    """An iterate of the active-set method; multipliers that are not free are 0.

    Attributes:
      multipliers: z >= 0, float64 [n].
      gradient: a = Qz + p, float64 [n].
      free: bool [n].
      settled: bool [], whether z is the minimum over the free multipliers.
    """

    multipliers: tf.Tensor
    gradient: tf.Tensor
    free: tf.Tensor
    settled: tf.Tensor


_SCALAR = tf.TensorSpec([], tf.bool)
_VECTOR = tf.TensorSpec([None], tf.float64)


# Traced once: tracing its many ops in every computation that uses it would be slow.
@tf.function(
    input_signature=[
        _Problem(
            gram=tf.TensorSpec([None, None], tf.float64),
            slopes=_VECTOR,
            units=_VECTOR,
            finite=_SCALAR,
            dropped_rows=tf.TensorSpec([], tf.int32),
        )
    ],
    autograph=False,
)
def _traced_active_set(problem: _Problem) -> tuple[tf.Tensor, tf.Tensor]:
    return _active_set(_make_convex(problem))


def _active_set(problem: _Problem) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the multipliers and the number of steps."""
    size = tf.size(problem.slopes)

    def goes_on(_, iterate):
        total = tf.reduce_sum(iterate.multipliers)
        residual = _residual(iterate.multipliers, iterate.gradient)
        return (residual > _ROUNDING * (1 + total)) & (total <= _LARGEST_SUM)

    def body(count, iterate):
        return count + 1, _next_iterate(problem, iterate)

    nothing = tf.zeros_like(problem.slopes)
    start = _Iterate(
        nothing, problem.slopes, tf.zeros_like(nothing, tf.bool), tf.constant(True)
    )
    count, end = tf.while_loop(
        goes_on,
        body,
        (tf.constant(0), start),
        maximum_iterations=_MAX_STEPS_PER_ROW * size,
    )
    return end.multipliers, count


def _next_iterate(problem: _Problem, iterate: _Iterate) -> _Iterate:
    """Takes a step toward the minimum over the free multipliers.

    The step ends early if a multiplier reaches 0. At the minimum, the multiplier with
    the lowest gradient becomes free.
    """
    multipliers, gradient, free, settled = iterate
    costs = tf.where(free, tf.constant(np.inf, tf.float64), gradient)
    lowest = tf.one_hot(
        tf.argmin(costs), tf.size(costs), on_value=True, off_value=False, dtype=tf.bool
    )
    free |= lowest & settled & (gradient < 0)

    direction = _newton_direction(problem.gram, gradient, free)
    reach = tf.where(
        direction < 0, -multipliers / direction, tf.constant(np.inf, tf.float64)
    )
    length = tf.minimum(tf.reduce_min(reach), 1.0)
    blocked = reach <= length
    multipliers = tf.maximum(multipliers + length * direction, 0.0)
    multipliers = tf.where(blocked, tf.zeros_like(multipliers), multipliers)
    return _Iterate(
        multipliers, _gradient(problem, multipliers), free & ~blocked, length >= 1.0
    )


def _newton_direction(
    gram: tf.Tensor, gradient: tf.Tensor, free: tf.Tensor
) -> tf.Tensor:
    """Returns the step to the minimum over the free multipliers, float64 [n], else 0.

    If rows are linearly dependent, the matrix is singular up to rounding. A ridge above
    the rounding errors keeps the step short in the directions in which the objective
    hardly changes. It does not move the fixed point of the steps, because gradients are
    computed without the ridge.
    """
    rows = tf.where(free)[:, 0]
    block = tf.gather(tf.gather(gram, rows), rows, axis=1)
    size = tf.size(rows)
    ridge = _ROUNDING * tf.cast(tf.size(gradient), tf.float64)
    block += ridge * tf.eye(size, dtype=tf.float64)
    steps = tf.linalg.solve(block, -tf.gather(gradient, rows)[:, tf.newaxis])[:, 0]
    return tf.scatter_nd(rows[:, tf.newaxis], steps, tf.shape(gradient, tf.int64))


def _best_active_set(
    problem: _Problem, tolerance: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the multipliers, and 1 if any is positive, else 0, int32 []."""
    size = problem.slopes.shape[0]
    # [2^n, n], smallest sets first.
    sets = sorted(itertools.product([0.0, 1.0], repeat=size), key=sum)
    sets = tf.constant(sets, tf.float64, shape=[2**size, size])
    pairs = sets[:, :, tf.newaxis] * sets[:, tf.newaxis, :]
    candidates = _solve_semidefinite(pairs * problem.gram, -sets * problem.slopes)
    candidates = tf.maximum(candidates, 0.0)

    # The residuals are relative because rounding errors grow with the multipliers. An
    # infeasible problem, with multipliers that grow without bound, is not detected by
    # its residual but by their sum.
    residuals = _residual(candidates, _gradient(problem, candidates))
    relative = residuals / (1 + tf.reduce_sum(candidates, axis=-1))
    best = tf.argmin(tf.maximum(relative, tolerance))
    multipliers = tf.gather(candidates, best)
    return multipliers, tf.cast(tf.reduce_any(multipliers > 0), tf.int32)


def _solve_semidefinite(matrices: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Solves systems with diagonals of 1, or 0 for excluded unknowns.

    Gaussian elimination without row exchanges, which is backward stable for positive
    semidefinite matrices. A pivot is negative only because of rounding errors, so its
    absolute value, which measures them, is used as the pivot.

    Args:
      matrices: float64 [k, n, n] with a static n.
      targets: float64 [k, n].

    Returns:
      float64 [k, n].
    """
    if targets.shape[-1] == 0:
        return targets
    pivots = tf.maximum(tf.abs(matrices[:, :1, 0]), _ROUNDING)
    ratios = matrices[:, 1:, 0] / pivots
    rest = _solve_semidefinite(
        matrices[:, 1:, 1:] - ratios[:, :, tf.newaxis] * matrices[:, :1, 1:],
        targets[:, 1:] - ratios * targets[:, :1],
    )
    others = tf.reduce_sum(matrices[:, 0, 1:] * rest, axis=-1, keepdims=True)
    return tf.concat([(targets[:, :1] - others) / pivots, rest], axis=-1)
