"""The minimum-norm combination: golden vectors, optimality, oracles from SciPy, invariances."""

import hypothesis
import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import strategies as st

from tff_algos.solvers import block_pivoting, interior_point, min_norm

VECTOR = tf.TensorSpec([None], tf.float64)
MATRIX = tf.TensorSpec([None, None], tf.float64)
GOLDEN_FOUR = [[1, 2, 0], [2, -1, 1], [-1, 1, 3], [0, 1, -1]]
# Traced once, with n unknown, for all examples.
solve = tf.function(min_norm.solve, input_signature=[MATRIX, VECTOR, VECTOR, VECTOR])

# The certificate that every solution must have, relative to the largest K_ii.
CERTIFIED = 1e-10


def settings(max_examples):
    return hypothesis.settings(
        max_examples=max_examples, deadline=None, derandomize=True
    )


def box(size, radius):
    """Bounds at a distance around uniform weights, and those weights."""
    start = np.full(size, 1 / max(size, 1))
    return np.maximum(0, start - radius), np.minimum(1, start + radius), start


def solve_rows(rows, radius=1.0):
    rows = np.asarray(rows, np.float64)
    return solve(rows @ rows.T, *box(len(rows), radius))


def direction(rows, radius=1.0):
    return solve_rows(rows, radius).weights.numpy() @ rows


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def independent(rng, size, dimension):
    return rng.normal(size=(size, dimension))


def similar(rng, size, dimension):
    return rng.normal(size=dimension) + 0.05 * independent(rng, size, dimension)


def near_collinear(rng, size, dimension):
    return rng.normal(size=dimension) + 1e-6 * independent(rng, size, dimension)


def duplicates(rng, size, dimension):
    originals = independent(rng, -(-size // 3), dimension)
    return originals[rng.integers(len(originals), size=size)]


def near_duplicates(rng, size, dimension):
    rows = duplicates(rng, size, dimension) + 1
    return rows + 1e-7 * independent(rng, size, dimension)


def with_zero_rows(rng, size, dimension):
    return independent(rng, size, dimension) * (rng.uniform(size=(size, 1)) < 0.9)


def scaled(decades):
    def rows_of_many_norms(rng, size, dimension):
        rows = unit(independent(rng, size, dimension)) + unit(
            independent(rng, 1, dimension)
        )
        return rows * 10 ** rng.uniform(-decades / 2, decades / 2, size=(size, 1))

    return rows_of_many_norms


KINDS = {
    "independent": independent,
    "similar": similar,
    "near_collinear": near_collinear,
    "duplicates": duplicates,
    "near_duplicates": near_duplicates,
    "with_zero_rows": with_zero_rows,
    "norms_over_5_decades": scaled(5),
    "norms_over_24_decades": scaled(24),
}


@st.composite
def problems(draw, kinds=tuple(KINDS), max_size=12):
    """Rows and a radius of the box; rank-deficient wherever dimension < size."""
    size = draw(st.integers(1, max_size))
    dimension = draw(st.sampled_from([1, 2, 5, 50]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = KINDS[draw(st.sampled_from(kinds))](rng, size, dimension)
    return rows, draw(st.sampled_from([1.0, 0.5, 0.1, 1 / size, 0.3 / size]))


def check_solution(solution, gram, lower, upper, start):
    """Checks everything that a solution promises without the solver's own code."""
    weights = solution.weights.numpy()
    assert np.all(lower <= weights)
    assert np.all(weights <= upper)
    assert abs(weights.sum() - start.sum()) <= 1e-12

    # The gap, of a vertex that a loop fills.
    gradient = gram @ weights
    vertex, remaining = lower.copy(), start.sum() - lower.sum()
    for i in np.argsort(gradient):
        step = min(upper[i] - lower[i], max(remaining, 0))
        vertex[i] += step
        remaining -= step
    gap = (weights - vertex) @ gradient
    largest = gram.diagonal().max()
    assert gap <= CERTIFIED * largest
    assert solution.gap <= CERTIFIED * largest
    np.testing.assert_allclose(solution.gap, gap, rtol=1e-6, atol=1e-13 * largest)
    assert solution.accepted

    # The KKT conditions: no weight that may rise has a smaller <g_i, d> than one that
    # may fall. A gap bounds the violation times the distance that is left to move.
    room = 1e-3 / len(weights)
    can_rise, can_fall = weights + room < upper, weights - room > lower
    if can_rise.any() and can_fall.any():
        violation = gradient[can_fall].max() - gradient[can_rise].min()
        assert violation * room <= CERTIFIED * largest


@pytest.mark.parametrize(
    ("rows", "radius", "weights", "expected", "inner_products"),
    [
        ([[1, 0], [0, 2]], 1, [0.8, 0.2], [0.8, 0.4], [0.8, 0.8]),
        ([[1, 0], [0, 2]], 0.1, [0.6, 0.4], [0.6, 0.8], [0.6, 1.6]),
        ([[1, 0], [-1, 0]], 1, [0.5, 0.5], [0, 0], [0, 0]),
        ([[1, 0], [3, 0]], 1, [1, 0], [1, 0], [1, 3]),
        ([[1, 0], [3, 0]], 0.25, [0.75, 0.25], [1.5, 0], [1.5, 4.5]),
        ([[1, 1], [1, -1], [10, 0]], 1, [0.5, 0.5, 0], [1, 0], [1, 1, 10]),
        (
            np.diag([1, 2, 3]),
            1,
            np.array([36, 9, 4]) / 49,
            np.array([36, 18, 12]) / 49,
            np.full(3, 36 / 49),
        ),
        (
            GOLDEN_FOUR,
            1,
            np.array([0, 11, 6, 25]) / 42,
            np.array([8, 10, 2]) / 21,
            np.array([28, 8, 8, 8]) / 21,
        ),
        (
            GOLDEN_FOUR,
            0.15,
            np.array([17, 56, 29, 68]) / 170,
            np.array([20, 15, 15]) / 34,
            np.array([50, 40, 40, 0]) / 34,
        ),
    ],
)
def test_weights_are_those_computed_by_hand(
    rows, radius, weights, expected, inner_products
):
    rows = np.array(rows, np.float64)
    solution = solve_rows(rows, radius)
    found = solution.weights.numpy() @ rows
    # The search ends at a gap of 1e-12 ||d||^2, which leaves 1e-6 of d: the objective
    # is far closer than the weights.
    np.testing.assert_allclose(solution.weights, weights, atol=2e-6)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    np.testing.assert_allclose(rows @ found, inner_products, atol=2e-5)
    assert abs(found @ found - np.dot(expected, expected)) <= 1e-10
    check_solution(solution, rows @ rows.T, *box(len(rows), radius))


@settings(1000)
@hypothesis.given(problems())
def test_every_solution_is_certified(problem):
    rows, radius = problem
    gram, bounds = rows @ rows.T, box(len(rows), radius)
    check_solution(solve(gram, *bounds), gram, *bounds)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3, 10, 100])
def test_every_size_and_dimension_is_certified(kind, size):
    rng = np.random.default_rng(size)
    for dimension in (2, 50, 1000):
        for radius in (1.0, 1 / size):
            rows = KINDS[kind](rng, size, dimension)
            gram, bounds = rows @ rows.T, box(size, radius)
            check_solution(solve(gram, *bounds), gram, *bounds)


@settings(500)
@hypothesis.given(
    problems(kinds=("independent", "similar", "duplicates", "with_zero_rows"))
)
def test_the_simplex_agrees_with_scipys_nonnegative_least_squares(problem):
    rows, _ = problem
    # min ||G'x||^2 + (sum(x) - 1)^2 over x >= 0 has a multiple of the weights as its
    # solution.
    system = np.vstack([rows.T, np.ones(len(rows))])
    target = np.append(np.zeros(rows.shape[1]), 1.0)
    multiple, _ = scipy.optimize.nnls(system, target)
    expected = multiple / multiple.sum() @ rows
    largest = np.linalg.norm(rows, axis=1).max()
    found = direction(rows)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * largest)
    objective, optimum = found @ found, expected @ expected
    assert abs(objective - optimum) <= 2 * CERTIFIED * largest**2


@settings(150)
@hypothesis.given(problems(kinds=("independent", "similar", "duplicates"), max_size=8))
def test_the_box_agrees_with_scipys_quadratic_programming(problem):
    rows, radius = problem
    rows = rows / np.linalg.norm(rows, axis=1).max()
    gram, (lower, upper, start) = rows @ rows.T, box(len(rows), radius)
    reference = scipy.optimize.minimize(
        lambda weights: weights @ gram @ weights / 2,
        start,
        jac=lambda weights: gram @ weights,
        bounds=np.stack([lower, upper], axis=1),
        constraints={
            "type": "eq",
            "fun": lambda weights: weights.sum() - 1,
            "jac": np.ones_like,
        },
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    weights = solve(gram, lower, upper, start).weights.numpy()
    objective = weights @ gram @ weights / 2
    np.testing.assert_allclose(objective, reference.fun, rtol=0, atol=1e-8)


@settings(300)
@hypothesis.given(
    st.floats(-2, 2), st.floats(0.1, 3), st.floats(0.1, 3), st.floats(0, 0.5)
)
def test_two_rows_have_a_closed_form(angle, first, second, radius):
    rows = np.array([[first, 0], [second * np.cos(angle), second * np.sin(angle)]])
    gram, (lower, upper, start) = rows @ rows.T, box(2, radius)
    curvature = gram[0, 0] - 2 * gram[0, 1] + gram[1, 1]
    hypothesis.assume(curvature > 1e-3)
    weight = np.clip((gram[1, 1] - gram[0, 1]) / curvature, lower[0], upper[0])
    weights = solve(gram, lower, upper, start).weights
    np.testing.assert_allclose(weights, [weight, 1 - weight], atol=1e-5)


@pytest.mark.parametrize("decades", [2, 8, 24])
def test_orthogonal_rows_weigh_by_their_inverse_squared_norms(decades):
    norms = 10 ** np.linspace(-decades / 2, decades / 2, 13)
    weights = solve_rows(np.diag(norms)).weights
    # To the same relative accuracy for the smallest weight, 1e-48 of the largest.
    expected = norms**-2.0 / np.sum(norms**-2.0)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_equal_cosines_give_uniform_weights():
    gram = np.full((5, 5), 0.3) + 0.7 * np.eye(5)
    start = np.array([0.6, 0.1, 0.1, 0.1, 0.1])
    solution = solve(gram, np.zeros(5), np.ones(5), start)
    np.testing.assert_allclose(solution.weights, np.full(5, 0.2), atol=1e-6)


@settings(200)
@hypothesis.given(problems(kinds=("independent", "similar", "duplicates")))
def test_without_an_active_box_every_row_agrees_with_the_direction(problem):
    rows, _ = problem
    found = direction(rows)
    largest = np.sum(rows**2, axis=1).max()
    assert np.all(rows @ found >= found @ found - 1e-10 * largest)


@settings(150)
@hypothesis.given(problems(), st.randoms(use_true_random=False))
def test_the_direction_does_not_depend_on_the_order(problem, random):
    rows, radius = problem
    order = np.array(random.sample(range(len(rows)), len(rows)))
    largest = np.linalg.norm(rows, axis=1).max()
    np.testing.assert_allclose(
        direction(rows[order], radius), direction(rows, radius), atol=2e-5 * largest
    )


@settings(150)
@hypothesis.given(problems(), st.integers(-30, 30))
def test_weights_do_not_depend_on_the_unit(problem, exponent):
    rows, radius = problem
    # A power of 2 changes no digit, so that not one bit of the weights may change.
    gram, bounds = rows @ rows.T, box(len(rows), radius)
    scale = 2.0**exponent
    solution, rescaled = solve(gram, *bounds), solve(scale * gram, *bounds)
    np.testing.assert_array_equal(rescaled.weights, solution.weights)
    assert rescaled.gap == scale * solution.gap
    assert rescaled.iterations == solution.iterations


@settings(60)
@hypothesis.given(problems())
def test_a_larger_box_never_gives_a_longer_direction(problem):
    rows, _ = problem
    largest = np.sum(rows**2, axis=1).max()
    squares = [
        np.sum(direction(rows, radius) ** 2) for radius in (0, 0.01, 0.1, 0.3, 1)
    ]
    assert np.all(np.diff(squares) <= 2 * CERTIFIED * largest)
    np.testing.assert_allclose(squares[0], np.sum(rows.mean(axis=0) ** 2), rtol=1e-9)


@settings(100)
@hypothesis.given(problems())
def test_without_a_choice_the_start_comes_back_bit_for_bit(problem):
    rows, _ = problem
    rng = np.random.default_rng(len(rows))
    start = rng.dirichlet(np.ones(len(rows)))
    solution = solve(rows @ rows.T, start, start, start)
    np.testing.assert_array_equal(solution.weights, start)
    assert solution.iterations == 0
    assert solution.accepted


def test_an_optimal_start_comes_back_bit_for_bit():
    start = np.array([0.1, 0.2, 0.7])
    solution = solve(np.ones((3, 3)), np.zeros(3), np.ones(3), start)
    np.testing.assert_array_equal(solution.weights, start)
    assert solution.iterations == 0
    assert solution.gap == 0


@settings(150)
@hypothesis.given(problems())
def test_rows_that_take_no_part_change_nothing(problem):
    rows, radius = problem
    gram, bounds = rows @ rows.T, box(len(rows), radius)
    size = len(rows)
    slots = np.arange(size) * 2 + 1
    padded = np.full((2 * size + 1, 2 * size + 1), np.nan)
    padded[np.ix_(slots, slots)] = gram
    padded_bounds = []
    for bound in bounds:
        padded_bound = np.zeros(2 * size + 1)
        padded_bound[slots] = bound
        padded_bounds.append(padded_bound)
    solution = solve(padded, *padded_bounds)
    weights = solution.weights.numpy()
    assert np.all(np.delete(weights, slots) == 0)
    solution = solution._replace(weights=tf.constant(weights[slots]))
    check_solution(solution, gram, *bounds)


def test_the_sum_is_that_of_the_start():
    start = np.array([0.1, 0.3])
    solution = solve(np.diag([1.0, 4.0]), np.zeros(2), np.ones(2), start)
    np.testing.assert_allclose(solution.weights, [0.32, 0.08], atol=1e-7)


def test_no_rows_have_no_weights():
    solution = solve(np.zeros((0, 0)), *box(0, 1.0))
    assert solution.weights.shape == [0]
    assert solution.gap == 0
    assert solution.accepted


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("argument", range(4))
def test_arguments_that_are_not_finite_are_not_accepted(value, argument):
    arguments = [np.diag([1.0, 4.0, 9.0]), *box(3, 1.0)]
    arguments[argument].flat[0] = value
    solution = solve(*arguments)
    np.testing.assert_array_equal(solution.weights, arguments[-1])
    assert np.isnan(solution.gap)
    assert not solution.accepted


@pytest.mark.parametrize("shift", [4e-7, 6e-7])
def test_a_search_that_ends_early_says_so(monkeypatch, untraced, shift):
    monkeypatch.setattr(block_pivoting, "_MAX_PIVOTS", 0)
    monkeypatch.setattr(interior_point, "_MAX_STEPS", 0)
    # <g_i, d> = start for two orthonormal rows: the gap is start_0 - 1/2 + O(shift^2),
    # and ||d||^2 is 1/2.
    start = tf.constant([0.5 + shift, 0.5 - shift], tf.float64)
    gram = tf.eye(2, dtype=tf.float64)
    solution = min_norm.solve(gram, tf.zeros(2), tf.ones(2), start)
    np.testing.assert_array_equal(solution.weights, start)
    np.testing.assert_allclose(solution.gap, shift + 2 * shift**2, rtol=1e-6)
    assert bool(solution.accepted) == (shift < 5e-7)


FAMILIES = {
    "independent": lambda rng: rng.normal(size=(300, 1000)),
    "rank_deficient": lambda rng: rng.normal(size=(300, 50)),
    "similar": lambda rng: rng.normal(size=200) + 0.3 * rng.normal(size=(300, 200)),
}


@pytest.mark.parametrize("radius", [1.0, 0.01])
@pytest.mark.parametrize("decades", [5, 8, 12])
@pytest.mark.parametrize("family", FAMILIES)
def test_300_rows_whose_norms_span_decades_are_certified(family, decades, radius):
    """The gap is judged next to ||d||^2, which is far below the largest norm's."""
    rng = np.random.default_rng(decades)
    rows = unit(FAMILIES[family](rng)) * 10 ** -rng.uniform(0, decades, size=(300, 1))
    solution = solve_rows(rows, radius)
    gram, bounds = rows @ rows.T, box(300, radius)
    assert solution.accepted
    check_solution(solution, gram, *bounds)
    weights, norms = solution.weights.numpy(), np.linalg.norm(rows, axis=1)
    # Of <g_i, d>, whose sum has 300 terms, float64 keeps no more.
    noise = 64 * 300 * np.finfo(float).eps * norms.max() * (weights @ norms)
    assert solution.gap <= max(1e-8 * np.sum((weights @ rows) ** 2), noise)
    assert solution.iterations <= 12 + 80


def test_an_asymmetric_matrix_counts_as_its_symmetric_part():
    gram = np.array([[1.0, 3.0], [-1.0, 4.0]])
    solution = solve(gram, *box(2, 1.0))
    np.testing.assert_allclose(solution.weights, [1.0, 0.0], atol=1e-12)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("gram", ([2, 3], [2], [2], [2])),
        ("lower", ([2, 2], [3], [2], [2])),
        ("upper", ([2, 2], [2], [1], [2])),
        ("start", ([2, 2], [2], [2], [2, 1])),
    ],
)
def test_shapes_that_do_not_fit_are_named(name, shapes):
    with pytest.raises(ValueError, match=f"Expected {name} to have the shape"):
        min_norm.solve(*[tf.zeros(shape) for shape in shapes])


@pytest.mark.parametrize("runtime", ["in_process_context", "native_context"])
def test_it_runs_within_a_tff_computation(runtime, request):
    vector = tff.TensorType(np.float64, [None])

    @tff.tensorflow.computation(
        tff.TensorType(np.float64, [None, None]), vector, vector, vector
    )
    def computation(gram, lower, upper, start):
        return min_norm.solve(gram, lower, upper, start)

    context = request.getfixturevalue(runtime)
    arguments = np.diag([1.0, 4.0, 1e-12, 1e12]), *box(4, 0.5)
    with tff.framework.get_context_stack().install(context):
        solution = computation(*arguments)
    expected = solve(*arguments)
    np.testing.assert_allclose(solution.weights, expected.weights, rtol=1e-9)
    assert solution.iterations == expected.iterations
    assert solution.accepted
