"""The projection on a cone given by rows, from inner products alone.

GradMA (Luo et al., 2023, arXiv 2302.14307) corrects a gradient or a momentum g as
little as possible, so that it opposes none of the rows G_i, which are earlier gradients
or remembered updates:

    minimise 1/2 ||v - g||^2   over v with   <G_i, v> >= qp_margin ||g|| ||G_i|| for all i.

The solution is v = g + sum_i z_i G_i for the multipliers z of the dual problem

    minimise 1/2 z'Qz + p'z   over z >= 0,   Q_ij = <G_i, G_j>,
                                             p_i = <G_i, g> - qp_margin ||g|| ||G_i||.

Rows of any length d come in only through Q and p. v does not depend on the norms of the
rows and is proportional to that of g: both are divided out first. For the qp_margin 0, v is
the projection of g on a cone, and z solves the non-negative least squares problem
min ||g + sum_i z_i G_i||. Where the rows depend on each other, v is still unique, and z
is not.

Both solvers judge z by the residual of the conditions of Karush, Kuhn and Tucker, with
a = Qz + p, which is what <G_i, v> exceeds its bound by:

    z_i >= 0,   a_i >= 0,   z_i a_i = 0   if and only if   max_i |min(z_i, a_i)| = 0.
"""

import itertools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# A row is as good as zero if its norm is at most this, relative to the largest, ...
_SMALLEST_ROW = 1e-12
# ... and g if its norm is at most this.
_SMALLEST_NORM = 1e-30

# The residual at which a solution is accepted, and the sum of the multipliers, of rows
# and g of length 1, above which the dual problem counts as unbounded: no v exists.
_ACCEPTED_RESIDUAL = 1e-3
_LARGEST_SUM = 1e8

_MAX_STEPS_PER_ROW = 10
_MAX_FEW_ROWS = 3

# What is below this, relative to 1, may be nothing but rounding errors.
_ROUNDING = 4 * np.finfo(np.float64).eps


# The same of inner products of vectors that were computed in float32.
FLOAT32_TOLERANCE = 1e-6


class ConeSolution(NamedTuple):
    """A solution, with what it takes to judge it.

    Attributes:
      multipliers: Float64 [n], z >= 0, in units of norm of g per norm of G_i: v is
        g + sum_i multipliers[i] * G_i. Zeros, so that v = g, if it is not accepted.
      residual: Float64 [], of the conditions above, for rows and g of length 1, and
        before zeros replaced a solution that is not accepted. NaN if g is not finite.
      iterations: Int32 [], steps of the search; 0 if g itself is the solution.
      accepted: Bool [], whether the residual is at most 1e-3 and the multipliers, of
        rows and g of length 1, add up to at most 1e8. A larger sum says that no v
        exists: a qp_margin > 0 asks too much of rows that oppose each other.
      dropped_rows: Int32 [], how many rows were left out as they are not finite.
    """

    multipliers: tf.Tensor
    residual: tf.Tensor
    iterations: tf.Tensor
    accepted: tf.Tensor
    dropped_rows: tf.Tensor


class _Problem(NamedTuple):
    """Minimise 1/2 z'Qz + p'z over z >= 0, for rows and g of length 1.

    Attributes:
      gram: Q, float64 [n, n]; 0 where a row takes no part.
      slopes: p, float64 [n]; 0 where a row takes no part.
      units: Float64 [n], what z is multiplied by for the rows and g as they were.
      finite: Bool [], whether g and the qp_margin are finite.
      dropped_rows: Int32 [].
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
    """Returns the multipliers of the projection on the cone of n rows.

    The active-set method of Lawson and Hanson (1974) for non-negative least squares, on
    the Gram matrix. Pure TensorFlow, deterministic, for any n >= 0, which may be unknown
    until it runs.

    Rows that are not finite, or with a norm of at most 1e-12 of the largest one, have
    the multiplier 0 and change nothing. The multipliers are exactly zeros, with no
    iteration, if all p_i >= 0, without rows, and if ||g|| <= 1e-30.

    Args:
      gram: Float [n, n], the inner products of the rows; if it is not symmetric, its
        symmetric part counts. They are best added up in float64: by the errors of
        float32, rows that depend on each other contradict each other, which costs
        digits of v.
      products: Float [n], the inner products <G_i, g>.
      squared_norm: Float [], ||g||^2.
      qp_margin: Float [], the cosine that v, with the norm of g, must have with the rows.
      present: Bool [n], the rows that take part, by default all; what the others hold
        is ignored.

    Returns:
      The solution; not accepted if g or the qp_margin is not finite.

    Raises:
      ValueError: If the shapes do not fit together, as far as they are known.
    """
    problem = _normalise(gram, products, squared_norm, qp_margin, present)
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
    """Returns what `solve` does for up to three rows, without control flow.

    All 2^n sets of active rows are solved in closed form at once, and the smallest one
    that is optimal up to the tolerance is chosen. It is made for one problem per client
    and local step, and runs under `tf.vectorized_map`.

    Two rows that are opposite but for rounding errors leave a cone whose width is
    nothing but these errors, and whose exact projection follows them. A tolerance above
    the errors leaves one of the two rows out instead.

    Args:
      gram: Float [n, n], as in `solve`, with a static n <= 3.
      products: Float [n], the inner products <G_i, g>.
      squared_norm: Float [], ||g||^2.
      qp_margin: Float [], as in `solve`.
      tolerance: The residual, of rows and g of length 1 and relative to 1 + the sum of
        the multipliers, up to which a set of active rows counts as optimal; by default
        the rounding error of float64. `FLOAT32_TOLERANCE` is for rows computed in
        float32.

    Returns:
      The solution; its number of iterations is 1, or 0 if g itself is the solution.

    Raises:
      ValueError: If n is unknown or larger than 3, or the shapes do not fit together.
    """
    products = _as_float64(products)
    size = products.shape[0] if products.shape.rank == 1 else None
    if size is None or size > _MAX_FEW_ROWS:
        raise ValueError(
            f"Expected products to have a static shape [n] with n <= {_MAX_FEW_ROWS}, "
            f"found {products.shape}; use solve for other numbers of rows."
        )
    problem = _normalise(gram, products, squared_norm, qp_margin, None)
    return _solution(problem, *_best_active_set(problem, tolerance))


def _normalise(
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
    # Without the hint, a Python number would be rounded to float32 on the way.
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
    """Bool [n]: the row has finite inner products with itself, g and such rows."""
    squares = tf.linalg.diag_part(gram)
    # A row with one bad element makes inner products of all other rows with it bad:
    # its own square tells it from them.
    candidate = present & tf.math.is_finite(squares) & tf.math.is_finite(products)
    is_finite = tf.math.is_finite(gram + tf.transpose(gram))
    return candidate & tf.reduce_all(is_finite | ~candidate, axis=1)


def _solution(
    problem: _Problem, multipliers: tf.Tensor, iterations: tf.Tensor
) -> ConeSolution:
    """The solution with the multipliers of rows and g of length 1, float64 [n]."""
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
    """a = Qz + p, float64 [..., n], for z of this shape."""
    return tf.linalg.matvec(problem.gram, multipliers) + problem.slopes


def _residual(multipliers: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """How far the conditions for z >= 0 are from being met, float64 [...]."""
    violations = tf.abs(tf.minimum(multipliers, gradient))
    # Without rows, the largest violation would be -infinity.
    return tf.maximum(tf.reduce_max(violations, axis=-1), 0.0)


def _make_convex(problem: _Problem) -> _Problem:
    """The problem without the negative curvature that only rounding errors bring.

    That of inner products in float32 tells how large the errors are: the smallest
    curvature becomes that large, so that the errors of p cannot make z grow either.
    """
    lowest = tf.reduce_min(tf.concat([tf.linalg.eigvalsh(problem.gram), [0.0]], axis=0))
    shift = -2 * lowest * tf.eye(tf.size(problem.slopes), dtype=tf.float64)
    return problem._replace(gram=problem.gram + shift)


class _Iterate(NamedTuple):
    """Multipliers, of which those that are not free are 0.

    Attributes:
      multipliers: z >= 0, float64 [n].
      gradient: a = Qz + p, float64 [n].
      free: Bool [n].
      settled: Bool [], whether z minimises over the free multipliers.
    """

    multipliers: tf.Tensor
    gradient: tf.Tensor
    free: tf.Tensor
    settled: tf.Tensor


_SCALAR = tf.TensorSpec([], tf.bool)
_VECTOR = tf.TensorSpec([None], tf.float64)


# Traced once: its many ops would take long in every computation that solves.
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
    """The multipliers and the number of steps."""
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
    """A step towards the minimum over the free multipliers, until one of them is 0.

    Once at that minimum, the multiplier whose gradient is the lowest becomes free.
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
    """The way to the minimum over the free multipliers, float64 [n], else 0.

    Where rows depend on each other, the matrix is singular up to rounding. A ridge that
    is above the rounding keeps the step short in those directions, in which the
    objective hardly changes. It does not change where the steps end: the next one
    starts with the gradient at hand, without a ridge.
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
    """The multipliers, and whether there are any, int32 []."""
    size = problem.slopes.shape[0]
    # [2^n, n]; the smallest sets come first.
    sets = sorted(itertools.product([0.0, 1.0], repeat=size), key=sum)
    sets = tf.constant(sets, tf.float64, shape=[2**size, size])
    pairs = sets[:, :, tf.newaxis] * sets[:, tf.newaxis, :]
    candidates = _solve_semidefinite(pairs * problem.gram, -sets * problem.slopes)
    candidates = tf.maximum(candidates, 0.0)

    # Rounding errors grow with the multipliers; next to multipliers that grow without
    # bound, which say that there is no solution, no residual is large.
    residuals = _residual(candidates, _gradient(problem, candidates))
    relative = residuals / (1 + tf.reduce_sum(candidates, axis=-1))
    best = tf.argmin(tf.maximum(relative, tolerance))
    multipliers = tf.gather(candidates, best)
    return multipliers, tf.cast(tf.reduce_any(multipliers > 0), tf.int32)


def _solve_semidefinite(matrices: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Solves systems with diagonals of 1, or 0 for an unknown that takes no part.

    Gaussian elimination without row exchanges, which is backward stable for positive
    semidefinite matrices. A pivot is negative only by rounding errors and tells their
    size: that size is used as the pivot.

    Args:
      matrices: Float64 [k, n, n] with a static n.
      targets: Float64 [k, n].

    Returns:
      Float64 [k, n].
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
