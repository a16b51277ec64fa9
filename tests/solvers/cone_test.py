"""The projection on a cone: golden vectors, KKT, SciPy's oracle, invariances."""

import itertools

import hypothesis
import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import strategies as st

from tff_algos.solvers import cone


def problem_specs(size):
    return [
        tf.TensorSpec([size, size], tf.float64),
        tf.TensorSpec([size], tf.float64),
        tf.TensorSpec([], tf.float64),
        tf.TensorSpec([], tf.float64),
    ]


def traced(function, *specs):
    """The function, traced once for all examples, with NumPy's arrays as its result."""
    function = tf.function(function, input_signature=specs)
    return lambda *arguments: tf.nest.map_structure(
        lambda tensor: tensor.numpy(), function(*arguments)
    )


solve = traced(cone.solve, *problem_specs(None))
solve_present = traced(cone.solve, *problem_specs(None), tf.TensorSpec([None], tf.bool))
FEW = {size: traced(cone.solve_few, *problem_specs(size)) for size in range(4)}


def solve_few(gram, products, squared_norm, qp_margin):
    return FEW[len(products)](gram, products, squared_norm, qp_margin)


SOLVERS = {"solve": solve, "solve_few": solve_few}
both_solvers = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)

# What every solution must reach, for rows and a target of length 1.
CERTIFIED = 1e-10


def settings(max_examples):
    return hypothesis.settings(
        max_examples=max_examples, deadline=None, derandomize=True
    )


def inner_products(rows, target):
    return rows @ rows.T, rows @ target, target @ target


def solve_rows(rows, target, qp_margin=0.0, solver=solve):
    rows, target = np.asarray(rows, np.float64), np.asarray(target, np.float64)
    return solver(*inner_products(rows, target), qp_margin)


def project(rows, target, qp_margin=0.0, solver=solve):
    solution = solve_rows(rows, target, qp_margin, solver)
    return target + solution.multipliers @ rows


def unit(rows):
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1)


def independent(rng, size, dimension):
    return rng.normal(size=(size, dimension))


def similar(rng, size, dimension):
    return rng.normal(size=dimension) + 0.1 * independent(rng, size, dimension)


def duplicates(rng, size, dimension):
    originals = independent(rng, -(-size // 3), dimension)
    return originals[rng.integers(len(originals), size=size)]


def near_duplicates(rng, size, dimension):
    rows = duplicates(rng, size, dimension)
    return rows + 1e-7 * independent(rng, size, dimension)


def opposites(rng, size, dimension):
    return duplicates(rng, size, dimension) * rng.choice([-1, 1], size=(size, 1))


def with_zero_rows(rng, size, dimension):
    return independent(rng, size, dimension) * (rng.uniform(size=(size, 1)) < 0.8)


def small_integers(rng, size, dimension):
    return rng.integers(-1, 2, size=(size, dimension)).astype(np.float64)


def norms_over_11_decades(rng, size, dimension):
    return independent(rng, size, dimension) * 10 ** rng.uniform(-5, 5, (size, 1))


KINDS = {
    "independent": independent,
    "similar": similar,
    "duplicates": duplicates,
    "near_duplicates": near_duplicates,
    "opposites": opposites,
    "with_zero_rows": with_zero_rows,
    "small_integers": small_integers,
    "norms_over_11_decades": norms_over_11_decades,
}


def any_target(rng, rows):
    return rng.normal(size=rows.shape[1])


def opposing(rng, rows):
    return any_target(rng, rows) - unit(rows).sum(axis=0)


def against_all(rng, rows):
    return -unit(rows).mean(axis=0) + 1e-3 * any_target(rng, rows)


def in_negative_cone(rng, rows):
    return -rng.exponential(size=len(rows)) @ unit(rows)


TARGETS = {
    "any": any_target,
    "opposing": opposing,
    "against_all": against_all,
    "in_negative_cone": in_negative_cone,
}


@st.composite
def problems(draw, kinds=tuple(KINDS), targets=tuple(TARGETS), max_size=12):
    """Rows, dependent wherever dimension < size, and a target."""
    size = draw(st.integers(1, max_size))
    dimension = draw(st.sampled_from([1, 2, 5, 50]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = KINDS[draw(st.sampled_from(kinds))](rng, size, dimension)
    target = TARGETS[draw(st.sampled_from(targets))](rng, rows)
    return rows, target


def check_solution(solution, rows, target, qp_margin=0.0):
    """Checks everything that a solution promises, from the rows themselves."""
    multipliers = solution.multipliers
    assert np.all(multipliers >= 0)
    assert solution.accepted
    assert solution.dropped_rows == 0
    assert solution.residual <= CERTIFIED

    # The KKT conditions, for rows and target of length 1.
    norm, row_norms = np.linalg.norm(target), np.linalg.norm(rows, axis=1)
    if norm == 0:
        np.testing.assert_array_equal(multipliers, 0)
        return
    scaled = multipliers * row_norms / norm
    found = target + multipliers @ rows
    excess = np.where(row_norms > 0, unit(rows) @ found / norm - qp_margin, 0)
    assert np.all(excess >= -CERTIFIED)
    assert np.all(np.minimum(scaled, excess) <= CERTIFIED)
    residual = np.abs(np.minimum(scaled, excess)).max()
    np.testing.assert_allclose(solution.residual, residual, rtol=0, atol=CERTIFIED)

    if qp_margin == 0:
        # The projection on a cone: v and what was added to g are orthogonal.
        assert abs(found @ (found - target)) <= 1e-9 * norm**2
        assert np.linalg.norm(found) <= norm * (1 + 1e-12)


GOLDEN_THREE = [[1, 2, 0], [2, -1, 1], [-1, 1, 3]]


@both_solvers
@pytest.mark.parametrize(
    ("rows", "target", "qp_margin", "multipliers", "expected", "products"),
    [
        ([[1, 1]], [1, -2], 0, [0.5], [1.5, -1.5], [0]),
        ([[1, 0], [0, 1]], [-1, -1], 0, [1, 1], [0, 0], [0, 0]),
        ([[1, 0], [0, 1]], [1, 1], 0, [0, 0], [1, 1], [1, 1]),
        ([[1, 0], [1, 1]], [-1, 0.5], 0, [1, 0], [0, 0.5], [0, 0.5]),
        ([[1, 0]], [0, 1], 0.5, [0.5], [0.5, 1], [0.5]),
        (GOLDEN_THREE, [-3, 1, 1], 0, [0.2, 1, 0], [-0.8, 0.4, 2], [0, 0, 7.2]),
        (GOLDEN_THREE, [-1, -1, -1], 0, np.array([5, 3, 2]) / 9, [0] * 3, [0] * 3),
    ],
)
def test_projections_are_those_computed_by_hand(
    solver, rows, target, qp_margin, multipliers, expected, products
):
    rows, target = np.array(rows, np.float64), np.array(target, np.float64)
    solution = solve_rows(rows, target, qp_margin, solver)
    found = target + solution.multipliers @ rows
    np.testing.assert_allclose(solution.multipliers, multipliers, atol=1e-12)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(rows @ found, products, atol=1e-12)
    check_solution(solution, rows, target, qp_margin)


@both_solvers
def test_equal_rows_have_one_projection_though_multipliers_are_not_unique(solver):
    rows, target = np.ones((2, 2)), np.array([1.0, -2.0])
    solution = solve_rows(rows, target, solver=solver)
    np.testing.assert_allclose(np.sum(solution.multipliers), 0.5, rtol=1e-12)
    np.testing.assert_allclose(
        project(rows, target, solver=solver), [1.5, -1.5], rtol=1e-12
    )
    check_solution(solution, rows, target)


@settings(700)
@hypothesis.given(problems())
def test_every_solution_is_certified(problem):
    check_solution(solve_rows(*problem), *problem)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3, 10, 100])
def test_every_size_and_dimension_is_certified(kind, size):
    rng = np.random.default_rng(size)
    for dimension in (2, 50, 1000):
        for target_of in TARGETS.values():
            rows = KINDS[kind](rng, size, dimension)
            target = target_of(rng, rows)
            check_solution(solve_rows(rows, target), rows, target)


@settings(600)
@hypothesis.given(problems(max_size=3))
def test_few_rows_are_certified_and_have_the_same_projection(problem):
    rows, target = problem
    solution = solve_rows(rows, target, solver=solve_few)
    check_solution(solution, rows, target)
    found = target + solution.multipliers @ rows
    # Near-duplicates leave sqrt(1e-15) of v open.
    np.testing.assert_allclose(
        found, project(rows, target), rtol=0, atol=2e-7 * np.linalg.norm(target)
    )


@settings(500)
@hypothesis.given(problems())
def test_it_agrees_with_scipys_nonnegative_least_squares(problem):
    rows, target = problem
    norm = np.linalg.norm(target)
    hypothesis.assume(norm > 0)
    multipliers, _ = scipy.optimize.nnls(unit(rows).T, -target / norm)
    expected = target / norm + multipliers @ unit(rows)
    np.testing.assert_allclose(
        project(rows, target) / norm, expected, rtol=0, atol=2e-7
    )


@settings(120)
@hypothesis.given(problems(kinds=("independent", "similar", "opposites")))
def test_no_feasible_vector_is_closer(problem):
    rows, target = problem
    found = project(rows, target)
    # Projections of other vectors are feasible.
    rng = np.random.default_rng(len(rows))
    for scale in (1e-3, 1.0):
        other = project(rows, found + scale * rng.normal(size=target.shape))
        distance = np.linalg.norm(other - target)
        assert distance >= np.linalg.norm(found - target) * (1 - 1e-9)


@both_solvers
@settings(120)
@hypothesis.given(
    angle=st.floats(-np.pi, np.pi),
    row_norm=st.floats(1e-3, 1e3),
    norm=st.floats(1e-3, 1e3),
    qp_margin=st.floats(-1, 1),
)
def test_one_row_has_a_closed_form(solver, angle, row_norm, norm, qp_margin):
    rows = row_norm * np.array([[1.0, 0.0]])
    target = norm * np.array([np.cos(angle), np.sin(angle)])
    found = project(rows, target, qp_margin, solver)
    expected = [max(target[0], qp_margin * norm), target[1]]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * norm)


@both_solvers
@settings(120)
@hypothesis.given(
    problems(kinds=("independent", "norms_over_11_decades"), max_size=3),
    st.sampled_from([-0.5, -0.01, 1e-6, 0.01, 0.1, 0.9]),
)
def test_independent_rows_allow_every_margin(solver, problem, qp_margin):
    rows, target = problem
    hypothesis.assume(len(rows) <= rows.shape[1] and np.linalg.cond(unit(rows)) < 1e3)
    check_solution(solve_rows(rows, target, qp_margin, solver), rows, target, qp_margin)


@pytest.mark.parametrize("qp_margin", [-0.5, 0.01, 0.1])
def test_many_rows_allow_a_margin(qp_margin):
    rng = np.random.default_rng(0)
    for kind in ("independent", "similar"):
        rows = KINDS[kind](rng, 100, 1000)
        for target_of in TARGETS.values():
            target = target_of(rng, rows)
            check_solution(solve_rows(rows, target, qp_margin), rows, target, qp_margin)


TRIANGLE = [[1, 0], [-0.5, np.sqrt(0.75)], [-0.5, -np.sqrt(0.75)]]


@both_solvers
@pytest.mark.parametrize("rows", [[[1, 2], [-3, -6]], TRIANGLE])
@pytest.mark.parametrize("qp_margin", [1e-5, 0.1, 0.9])
def test_a_margin_that_no_vector_meets_is_not_accepted(solver, rows, qp_margin):
    solution = solve_rows(rows, [0.3, -1.0], qp_margin, solver)
    assert not solution.accepted
    np.testing.assert_array_equal(solution.multipliers, 0)


@both_solvers
@pytest.mark.parametrize("rows", [[[1, 2], [-3, -6]], TRIANGLE])
@pytest.mark.parametrize("qp_margin", [0.0, -0.2])
def test_without_a_margin_opposite_rows_have_a_solution(solver, rows, qp_margin):
    rows, target = np.array(rows, np.float64), np.array([0.3, -1.0])
    check_solution(solve_rows(rows, target, qp_margin, solver), rows, target, qp_margin)


@both_solvers
@settings(120)
@hypothesis.given(problems(max_size=3))
def test_what_opposes_no_row_comes_back_bit_for_bit(solver, problem):
    rows, target = problem
    gram, products, squared_norm = inner_products(rows, target)
    solution = solver(gram, np.abs(products), squared_norm, 0.0)
    np.testing.assert_array_equal(solution.multipliers, 0)
    assert solution.residual == 0
    assert solution.iterations == 0
    assert solution.accepted


@both_solvers
def test_the_first_local_step_of_gradma_changes_nothing(solver):
    # Both remembered gradients are g itself, and there is no displacement yet.
    gradient = np.random.default_rng(0).normal(size=1000)
    rows = np.stack([gradient, gradient, np.zeros(1000)])
    np.testing.assert_array_equal(project(rows, gradient, solver=solver), gradient)


@settings(120)
@hypothesis.given(problems(targets=("in_negative_cone",)))
def test_the_negative_cone_is_projected_on_zero(problem):
    rows, target = problem
    found = project(rows, target)
    assert np.linalg.norm(found) <= 2e-7 * np.linalg.norm(target)


@settings(120)
@hypothesis.given(problems())
def test_what_is_orthogonal_to_all_rows_stays(problem):
    rows, target = problem
    padded = np.pad(rows, ((0, 0), (0, 1)))
    orthogonal = np.linalg.norm(target) + 1
    found = project(padded, np.append(target, orthogonal))
    assert found[-1] == orthogonal
    np.testing.assert_allclose(
        found[:-1], project(rows, target), rtol=0, atol=4e-7 * orthogonal
    )


WELL_SEPARATED = ("independent", "similar", "duplicates", "opposites")


@settings(120)
@hypothesis.given(problems(kinds=WELL_SEPARATED), st.integers(0, 2**32))
def test_the_norms_of_the_rows_do_not_matter(problem, seed):
    rows, target = problem
    scales = 10 ** np.random.default_rng(seed).uniform(-5, 5, size=(len(rows), 1))
    np.testing.assert_allclose(
        project(scales * rows, target),
        project(rows, target),
        rtol=0,
        atol=1e-9 * np.linalg.norm(target),
    )


@both_solvers
@settings(120)
@hypothesis.given(problems(max_size=3), st.integers(-99, 99), st.integers(-30, 30))
def test_units_do_not_matter(solver, problem, row_exponent, exponent):
    rows, target = problem
    # A power of 2 changes no digit, so that not one bit may change.
    row_scale, scale = 2.0**row_exponent, 2.0**exponent
    solution = solve_rows(rows, target, solver=solver)
    rescaled = solve_rows(row_scale * rows, scale * target, solver=solver)
    np.testing.assert_array_equal(
        rescaled.multipliers, solution.multipliers * scale / row_scale
    )
    assert rescaled.residual == solution.residual
    assert rescaled.iterations == solution.iterations


@settings(120)
@hypothesis.given(problems(kinds=WELL_SEPARATED), st.integers(0, 2**32))
def test_order_and_repetition_do_not_matter(problem, seed):
    rows, target = problem
    order = np.random.default_rng(seed).permutation(np.arange(2 * len(rows)) // 2)
    np.testing.assert_allclose(
        project(rows[order], target),
        project(rows, target),
        rtol=0,
        atol=1e-9 * np.linalg.norm(target),
    )


@settings(120)
@hypothesis.given(problems())
def test_absent_rows_change_nothing(problem):
    rows, target = problem
    size = 2 * len(rows) + 1
    present = np.arange(size) % 2 == 1
    gram, products = np.full((size, size), np.nan), np.full(size, np.nan)
    gram[np.ix_(present, present)] = rows @ rows.T
    products[present] = rows @ target
    solution = solve_present(gram, products, target @ target, 0.0, present)
    multipliers = solution.multipliers
    np.testing.assert_array_equal(multipliers[~present], 0)
    solution = solution._replace(multipliers=multipliers[present])
    check_solution(solution, rows, target)


@both_solvers
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_dropped_and_counted(solver, value):
    rows = np.array(GOLDEN_THREE, np.float64)
    target = np.array([-3.0, 1.0, 1.0])
    rows[0, 1] = value
    with np.errstate(invalid="ignore"):
        solution = solve_rows(rows, target, solver=solver)
    expected = solve_rows(rows[1:], target, solver=solver)
    assert solution.dropped_rows == 1
    assert solution.accepted
    assert solution.multipliers[0] == 0
    np.testing.assert_allclose(
        solution.multipliers[1:], expected.multipliers, rtol=1e-12
    )


@both_solvers
def test_a_row_whose_product_is_not_finite_is_dropped(solver):
    solution = solver(np.eye(2), np.array([np.nan, -1.0]), 4.0, 0.0)
    np.testing.assert_allclose(solution.multipliers, [0, 1], rtol=1e-12)
    assert solution.dropped_rows == 1


@both_solvers
def test_rows_whose_common_product_is_not_finite_are_dropped(solver):
    gram = np.eye(3)
    gram[0, 1] = np.inf
    solution = solver(gram, np.full(3, -1.0), 4.0, 0.0)
    np.testing.assert_allclose(solution.multipliers, [0, 0, 1], rtol=1e-12)
    assert solution.dropped_rows == 2


def test_absent_rows_are_not_counted_as_dropped():
    solution = solve_present(
        np.diag([1.0, np.nan]), np.array([-1.0, 0.0]), 1.0, 0.0, [True, False]
    )
    np.testing.assert_allclose(solution.multipliers, [1, 0], rtol=1e-12)
    assert solution.dropped_rows == 0


@both_solvers
@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_a_target_that_is_not_finite_is_not_accepted(solver, value):
    solution = solver(np.eye(2), -np.ones(2), value, 0.0)
    np.testing.assert_array_equal(solution.multipliers, 0)
    assert np.isnan(solution.residual)
    assert not solution.accepted
    assert solution.iterations == 0


@both_solvers
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_margin_that_is_not_finite_is_not_accepted(solver, value):
    solution = solver(np.eye(2), -np.ones(2), 4.0, value)
    np.testing.assert_array_equal(solution.multipliers, 0)
    assert np.isnan(solution.residual)
    assert not solution.accepted


@both_solvers
@pytest.mark.parametrize(("norm", "takes_part"), [(1e-11, True), (1e-13, False)])
@pytest.mark.parametrize("largest", [1e-12, 1.0, 1e12])
def test_rows_that_are_as_good_as_zero_take_no_part(solver, norm, takes_part, largest):
    rows = largest * np.diag([norm, 1.0])
    solution = solve_rows(rows, [-1.0, -1.0], solver=solver)
    expected = np.array([1 / norm if takes_part else 0, 1]) / largest
    np.testing.assert_allclose(solution.multipliers, expected, rtol=1e-12)
    assert solution.accepted
    assert solution.dropped_rows == 0


@both_solvers
@pytest.mark.parametrize(("norm", "is_corrected"), [(1e-29, True), (1e-31, False)])
def test_a_target_that_is_as_good_as_zero_is_not_corrected(solver, norm, is_corrected):
    solution = solve_rows([[1.0, 0.0]], [-norm, 0.0], solver=solver)
    np.testing.assert_allclose(
        solution.multipliers, [norm if is_corrected else 0], rtol=1e-12
    )
    assert solution.accepted


@both_solvers
def test_no_rows_have_no_multipliers(solver):
    solution = solver(np.zeros((0, 0)), np.zeros(0), 1.0, 0.0)
    assert solution.multipliers.shape == (0,)
    assert solution.residual == 0
    assert solution.accepted


@both_solvers
def test_an_asymmetric_matrix_counts_as_its_symmetric_part(solver):
    products = np.array([-1.0, -1.0])
    asymmetric = solver(np.array([[1.0, 0.9], [0.1, 1.0]]), products, 4.0, 0.0)
    symmetric = solver(np.array([[1.0, 0.5], [0.5, 1.0]]), products, 4.0, 0.0)
    np.testing.assert_allclose(asymmetric.multipliers, [2 / 3, 2 / 3], rtol=1e-12)
    np.testing.assert_array_equal(asymmetric.multipliers, symmetric.multipliers)


@pytest.mark.parametrize("size", [2, 3, 30, 100])
def test_rounding_errors_of_float32_are_no_reason_to_give_up(size):
    rng = np.random.default_rng(size)
    solver = solve_few if size <= 3 else solve
    # Of dependent rows: the computed Gram matrices have negative eigenvalues.
    for kind in ("independent", "duplicates", "opposites"):
        for _ in range(10 if size > 3 else 50):
            rows = unit(KINDS[kind](rng, size, min(size - 1, 10))).astype(np.float32)
            target = unit(opposing(rng, rows)).astype(np.float32)
            gram, products, squared_norm = map(np.float64, inner_products(rows, target))
            solution = solver(gram, products, squared_norm, 0.0)
            assert solution.accepted
            assert solution.iterations <= 3 * size
            found = target + solution.multipliers @ rows
            assert np.all(rows @ found >= -1e-4)


@pytest.mark.parametrize("violation", [5e-4, 2e-3])
def test_a_search_that_ends_early_says_so(monkeypatch, untraced, violation):
    monkeypatch.setattr(cone, "_MAX_STEPS_PER_ROW", 0)
    solution = cone.solve(np.eye(1), [-violation], 1.0)
    np.testing.assert_allclose(solution.residual, violation, rtol=1e-12)
    np.testing.assert_array_equal(solution.multipliers, 0)
    assert bool(solution.accepted) == (violation < 1e-3)


def test_python_numbers_keep_their_digits():
    for solver in (cone.solve, cone.solve_few):
        solution = solver([[1.0]], [-0.1], 1.0, qp_margin=0.1)
        np.testing.assert_allclose(solution.multipliers, [0.2], rtol=1e-15)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("products", ([2, 2], [2, 1], [], [], [2])),
        ("gram", ([2, 3], [2], [], [], [2])),
        ("squared_norm", ([2, 2], [2], [1], [], [2])),
        ("qp_margin", ([2, 2], [2], [], [2], [2])),
        ("present", ([2, 2], [2], [], [], [3])),
    ],
)
def test_shapes_that_do_not_fit_are_named(name, shapes):
    *arguments, present = [tf.zeros(shape) for shape in shapes]
    with pytest.raises(ValueError, match=f"Expected {name} to have the shape"):
        cone.solve(*arguments, tf.cast(present, tf.bool))


def test_few_rows_are_at_most_three():
    with pytest.raises(ValueError, match=r"n <= 3, found \(4,\); use solve"):
        cone.solve_few(np.eye(4), np.ones(4), 1.0)


def test_few_rows_are_a_known_number():
    with pytest.raises(ValueError, match="Expected products to have a static shape"):
        tf.function(cone.solve_few).get_concrete_function(*problem_specs(None))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_few_rows_vectorize_over_clients(size):
    rng = np.random.default_rng(size)
    clients = []
    for kind, target_of in itertools.product(KINDS.values(), TARGETS.values()):
        rows = kind(rng, size, 5)
        clients.append((*inner_products(rows, target_of(rng, rows)), 0.0))
    stacked = [tf.constant(np.stack(argument)) for argument in zip(*clients)]

    @tf.function
    def solve_all(*problem):
        return tf.vectorized_map(
            lambda client: cone.solve_few(*client),
            problem,
            fallback_to_while_loop=False,
        )

    batch = solve_all(*stacked)
    for i, client in enumerate(clients):
        solution = solve_few(*client)
        np.testing.assert_allclose(
            batch.multipliers[i], solution.multipliers, rtol=1e-9
        )
        np.testing.assert_allclose(batch.residual[i], solution.residual, atol=1e-14)
        assert batch.accepted[i] == solution.accepted
        assert batch.iterations[i] == solution.iterations


@pytest.mark.parametrize("runtime", ["in_process_context", "native_context"])
def test_it_runs_within_a_tff_computation(runtime, request):
    @tff.tensorflow.computation(
        tff.TensorType(np.float64, [None, None]), tff.TensorType(np.float64, [None])
    )
    def many(gram, products):
        return cone.solve(gram, products, 4.0)

    @tff.tensorflow.computation(
        tff.TensorType(np.float64, [3, 3]), tff.TensorType(np.float64, [5, 3])
    )
    def local_steps(gram, products):
        return tf.data.Dataset.from_tensor_slices(products).reduce(
            tf.zeros(3, tf.float64),
            lambda total, step: total + cone.solve_few(gram, step, 4.0).multipliers,
        )

    gram = np.array([[2.0, 1.0, 0.5], [1.0, 1.0, 0.0], [0.5, 0.0, 3.0]])
    products = np.random.default_rng(0).normal(size=(5, 3))
    context = request.getfixturevalue(runtime)
    with tff.framework.get_context_stack().install(context):
        solution = many(gram, products[0])
        total = local_steps(gram, products)
    steps = [solve(gram, step, 4.0, 0.0) for step in products]
    np.testing.assert_allclose(
        solution.multipliers, steps[0].multipliers, rtol=1e-9, atol=1e-12
    )
    assert solution.iterations == steps[0].iterations
    assert solution.accepted
    expected = np.sum([step.multipliers for step in steps], axis=0)
    assert np.any(expected > 0)
    np.testing.assert_allclose(total, expected, rtol=1e-9, atol=1e-12)
