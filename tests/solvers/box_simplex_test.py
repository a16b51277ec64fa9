"""The projection on the box-simplex and its vertices, against SciPy."""

import hypothesis
import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf
from hypothesis import strategies as st

from tff_algos.solvers import box_simplex

VECTOR = tf.TensorSpec([None], tf.float64)
SCALAR = tf.TensorSpec([], tf.float64)
SIGNATURE = [VECTOR, VECTOR, VECTOR, SCALAR]
# Traced once, with n unknown, for all examples.
project = tf.function(box_simplex.project, input_signature=SIGNATURE)
minimize_linear = tf.function(box_simplex.minimize_linear, input_signature=SIGNATURE)

many = hypothesis.settings(max_examples=500, deadline=None, derandomize=True)
fewer = hypothesis.settings(many, max_examples=200)


@st.composite
def boxes(draw):
    """Bounds with a total between their sums, now and then equal to one of them."""
    size = draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    upper = rng.uniform(size=size)
    lower = upper * rng.choice([0.0, 0.5, 1.0], size=size)
    upper *= rng.choice([0.0, 1.0], size=size, p=[0.1, 0.9])
    lower = np.minimum(lower, upper)
    share = draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
    return lower, upper, lower.sum() + share * (upper.sum() - lower.sum())


@st.composite
def points(draw, size):
    """Points with and without ties, of small and of large magnitude and offset."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    point = rng.normal(size=size) * 10 ** draw(st.integers(-6, 6))
    if draw(st.booleans()):
        point = np.round(point)
    return point + draw(st.sampled_from([0.0, -1e3, 1e6, 1e9]))


def simplex(point, total=1.0):
    zeros = np.zeros(len(point))
    return project(point, zeros, zeros + 1, total).numpy()


def check_feasible(result, lower, upper, total):
    assert np.all(lower <= result)
    assert np.all(result <= upper)
    assert abs(result.sum() - total) <= 1e-12


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ([0.7, 0.6], [0.55, 0.45]),
        ([2.0, 0.0], [1.0, 0.0]),
        ([1 / 3, 1 / 3, 1 / 3], [1 / 3, 1 / 3, 1 / 3]),
        ([5.0], [1.0]),
        ([], []),
    ],
)
def test_projections_on_the_simplex_are_those_computed_by_hand(point, expected):
    np.testing.assert_allclose(simplex(np.array(point)), expected, atol=1e-15)


def test_the_total_is_what_others_leave():
    np.testing.assert_allclose(simplex([0.7, 0.6], 0.5), [0.3, 0.2], atol=1e-15)


@many
@hypothesis.given(st.data())
def test_projection_is_the_clipped_shift_that_scipy_finds(data):
    lower, upper, total = data.draw(boxes())
    point = data.draw(points(len(lower)))
    result = project(point, lower, upper, total).numpy()
    check_feasible(result, lower, upper, total)

    def excess(shift):
        return np.clip(point - shift, lower, upper).sum() - total

    first, last = np.min(point - upper) - 1, np.max(point - lower) + 1
    # Rounding can take the sign from an excess of 0 at the ends.
    if excess(first) > 0 > excess(last):
        shift = scipy.optimize.brentq(excess, first, last, xtol=1e-15, rtol=1e-15)
        expected = np.clip(point - shift, lower, upper)
        tolerance = 1e-13 * max(1, np.abs(point).max())
        np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance)
    else:
        at_end = lower if excess(last) >= 0 else upper
        np.testing.assert_allclose(result, at_end, rtol=0, atol=1e-12)


@many
@hypothesis.given(st.data())
def test_projection_meets_the_optimality_conditions(data):
    lower, upper, total = data.draw(boxes())
    point = data.draw(points(len(lower)))
    result = project(point, lower, upper, total).numpy()
    # No feasible direction leads closer: an element that may fall has been moved down
    # by no less than an element that may rise.
    moved = point - result
    can_fall, can_rise = result > lower + 1e-12, result < upper - 1e-12
    if can_fall.any() and can_rise.any():
        least, most = moved[can_rise].max(), moved[can_fall].min()
        assert least <= most + 1e-12 * max(1, np.abs(point).max())


@fewer
@hypothesis.given(st.data())
def test_a_feasible_point_stays(data):
    lower, upper, total = data.draw(boxes())
    point = project(data.draw(points(len(lower))), lower, upper, total)
    again = project(point, lower, upper, total)
    np.testing.assert_allclose(again, point, rtol=0, atol=1e-14)


@pytest.mark.parametrize("magnitude", [1e9, 1e12, 1e15, 1e300, np.inf])
def test_large_points_keep_the_sum_and_the_bounds(magnitude):
    rng = np.random.default_rng(0)
    for _ in range(20):
        upper = rng.uniform(size=50)
        lower = upper * rng.uniform(size=50)
        total = (lower.sum() + upper.sum()) / 2
        point = magnitude * rng.normal(size=50)
        result = project(point, lower, upper, total).numpy()
        check_feasible(result, lower, upper, total)


def test_a_large_common_offset_does_not_matter():
    point = np.array([0.75, 0.5, -3.0])
    expected = [0.625, 0.375, 0.0]
    np.testing.assert_allclose(simplex(point + 2.0**35), expected, atol=1e-15)


def test_fixed_elements_keep_their_value_and_change_nothing():
    point, fixed = np.array([0.7, 9.0, 0.6, -9.0]), np.array([0, 0.25, 0, 0])
    upper = np.array([1, 0.25, 1, 0])
    result = project(point, fixed, upper, 1.25).numpy()
    np.testing.assert_allclose(result, [0.55, 0.25, 0.45, 0], atol=1e-15)


@fewer
@hypothesis.given(st.data())
def test_a_vertex_costs_as_little_as_scipys_linear_program(data):
    lower, upper, total = data.draw(boxes())
    costs = data.draw(points(len(lower)))
    result = minimize_linear(costs, lower, upper, total).numpy()
    check_feasible(result, lower, upper, total)
    assert np.sum((lower < result) & (result < upper)) <= 1

    # The solver's own tolerance is absolute: give it costs of order 1.
    scale = max(1, np.abs(costs).max())
    total = np.clip(total, lower.sum(), upper.sum())
    program = scipy.optimize.linprog(
        costs / scale,
        A_eq=np.ones((1, len(costs))),
        b_eq=[total],
        bounds=np.stack([lower, upper], axis=1),
        method="highs",
    )
    assert program.status == 0
    assert costs @ result / scale <= program.fun + 1e-9


def test_the_first_of_equally_cheap_elements_is_filled():
    costs, lower, upper = np.array([2.0, 1.0, 1.0]), np.zeros(3), np.full(3, 0.6)
    result = minimize_linear(costs, lower, upper, 1.0)
    np.testing.assert_allclose(result, [0.0, 0.6, 0.4], atol=1e-15)
