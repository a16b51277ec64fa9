"""Gradients that oppose no row: SciPy's oracle, projections, rows that are nothing."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.gradma_reference import project
from tff_algos.client_works.gradient_correction import correct

SHAPES = ((2, 3), (), (4,))
PARTS = [slice(0, 6), slice(6, 7), slice(7, 11)]
SIZE = 11


def cut(vector, dtype=tf.float64):
    parts = [vector[part] for part in PARTS]
    return tuple(
        tf.constant(part.reshape(shape), dtype)
        for part, shape in zip(parts, SHAPES, strict=True)
    )


def corrected(
    gradient, rows, qp_margin=0.0, qp_scope="global", dtype=tf.float64, fallbacks=0
):
    found, num_fallbacks = correct(
        cut(gradient, dtype), [cut(row, dtype) for row in rows], qp_margin, qp_scope
    )
    assert num_fallbacks == fallbacks
    assert [t.shape for t in found] == [*SHAPES]
    assert {t.dtype for t in found} == {dtype}
    return np.concatenate([np.ravel(t.numpy()) for t in found])


def project_with_margin(gradient, rows, qp_margin):
    """By trying all sets of rows that bind; the nearest vector that opposes none."""
    bounds = qp_margin * np.linalg.norm(gradient) * np.linalg.norm(rows, axis=1)
    found = []
    for size in range(len(rows) + 1):
        for binding in itertools.combinations(range(len(rows)), size):
            active = rows[list(binding)].reshape(size, SIZE)
            lacking = bounds[list(binding)] - active @ gradient
            step = np.linalg.pinv(active) @ lacking
            if np.all(rows @ (gradient + step) >= bounds - 1e-9):
                found.append(gradient + step)
    return min(found, key=lambda vector: np.linalg.norm(vector - gradient))


def random_problem(seed, num_rows=3):
    """A gradient, and rows most of which it opposes."""
    rng = np.random.default_rng(seed)
    gradient = rng.normal(size=SIZE)
    rows = rng.normal(size=[num_rows, SIZE]) - 0.5 * gradient
    return gradient, rows * 10.0 ** rng.integers(-3, 4, size=[num_rows, 1])


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_projection_of_scipy(seed):
    gradient, rows = random_problem(seed)
    expected = project(gradient, rows)
    np.testing.assert_allclose(corrected(gradient, rows), expected, rtol=1e-9)
    assert np.linalg.norm(expected - gradient) > 0.1


@pytest.mark.parametrize("seed", range(3))
def test_per_tensor_each_tensor_is_projected_by_itself(seed):
    gradient, rows = random_problem(seed)
    expected = project(gradient, rows, PARTS)
    found = corrected(gradient, rows, qp_scope="per_tensor")
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert np.max(np.abs(found - corrected(gradient, rows))) > 0.1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("qp_margin", [0.1, -0.2])
def test_with_a_margin_it_is_the_nearest_vector_of_that_cosine(seed, qp_margin):
    gradient, rows = random_problem(seed)
    expected = project_with_margin(gradient, rows, qp_margin)
    found = corrected(gradient, rows, qp_margin)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)
    assert np.linalg.norm(found - project(gradient, rows)) > 0.01


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("seed", range(3))
def test_it_opposes_no_row_and_is_the_foot_of_a_perpendicular(seed, dtype):
    gradient, rows = random_problem(seed)
    found = corrected(gradient, rows, dtype=dtype).astype(np.float64)
    norm = np.linalg.norm(found)
    tolerance = 1e-5 if dtype == tf.float32 else 1e-10
    assert np.all(rows @ found >= -tolerance * norm * np.linalg.norm(rows, axis=1))
    assert norm <= np.linalg.norm(gradient) * (1 + tolerance)
    assert abs(found @ (gradient - found)) <= tolerance * gradient @ gradient


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_length_of_a_row_does_not_matter(scale):
    gradient, rows = random_problem(0)
    longer = rows * [[1.0], [scale], [1.0]]
    np.testing.assert_allclose(
        corrected(gradient, longer), corrected(gradient, rows), rtol=1e-9
    )


def test_against_the_drift_alone_it_is_a_proximal_step_of_the_strength_that_it_takes():
    gradient, _ = random_problem(0)
    towards, away = -0.3 * gradient, 0.3 * gradient
    for drift in (towards + np.eye(SIZE)[2], away):
        strength = max(0.0, -gradient @ drift / (drift @ drift))
        np.testing.assert_allclose(
            corrected(gradient, [drift]), gradient + strength * drift, rtol=1e-9
        )
    # A step back to the server needs no correction.
    np.testing.assert_array_equal(corrected(gradient, [away]), gradient)


@pytest.mark.parametrize("qp_scope", ["global", "per_tensor"])
def test_the_rows_of_a_first_step_change_no_bit(qp_scope):
    gradient, _ = random_problem(1)
    rows = [gradient, gradient, np.zeros(SIZE)]
    found = corrected(gradient, rows, qp_scope=qp_scope)
    np.testing.assert_array_equal(found, gradient)


@pytest.mark.parametrize("qp_scope", ["global", "per_tensor"])
def test_a_gradient_of_zero_stays_zero(qp_scope):
    _, rows = random_problem(1)
    found = corrected(np.zeros(SIZE), rows, qp_scope=qp_scope)
    np.testing.assert_array_equal(found, np.zeros(SIZE))


def test_opposite_rows_with_a_margin_ask_too_much_and_change_nothing():
    gradient, _ = random_problem(2)
    rows = [gradient, -2 * gradient]
    for qp_scope, fallbacks in (("global", 1), ("per_tensor", len(SHAPES))):
        found = corrected(gradient, rows, 0.1, qp_scope, fallbacks=fallbacks)
        np.testing.assert_array_equal(found, gradient)


@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-5])
def test_no_rounding_makes_a_step_longer_where_rows_are_nearly_opposite(distance):
    # As the drift is to the gradients of a client with one batch.
    rng = np.random.default_rng(0)
    for _ in range(20):
        gradient, base = rng.normal(size=[2, SIZE])
        rows = base + distance * rng.normal(size=[3, SIZE])
        rows = (rows * [[1.0], [1.0], [-0.01]]).astype(np.float32)
        found = corrected(gradient, rows, dtype=tf.float32)
        assert np.linalg.norm(found) <= 1.001 * np.linalg.norm(gradient)
        cosines = rows @ found / np.linalg.norm(rows, axis=1) / np.linalg.norm(gradient)
        assert np.min(cosines) >= -0.02


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_counts_for_nothing(bad):
    gradient, rows = random_problem(0)
    broken = np.where(np.arange(SIZE) == 3, bad, 1.0)
    found = corrected(gradient, [rows[0], broken, rows[2]])
    np.testing.assert_allclose(found, corrected(gradient, rows[[0, 2]]), rtol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_are_opposite_but_for_float32_leave_what_is_across_them(seed):
    """After a full-batch step the drift is minus the gradient, up to rounding."""
    rng = np.random.default_rng(seed)
    row, gradient = rng.normal(size=SIZE), rng.normal(size=SIZE)
    gradient -= 2 * min(gradient @ row, 0) * row / (row @ row)
    weights = rng.normal(size=SIZE).astype(np.float32)
    moved = weights - np.float32(1e-2) * row.astype(np.float32)
    drift = (moved - weights).astype(np.float64)
    found = corrected(gradient, [row, row, drift], dtype=tf.float32)
    across = gradient - (gradient @ row) / (row @ row) * row
    error = np.linalg.norm(found - across) / np.linalg.norm(gradient)
    assert error <= 2e-5


# 76,800 elements, and some that make no whole group of products.
LARGE = (307, 251)


@pytest.mark.parametrize(
    ("compiled", "gpus"), [(False, []), (True, []), (False, ["a GPU"])]
)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e25])
def test_large_tensors_are_corrected_as_in_float64(scale, compiled, gpus, monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    rng = np.random.default_rng(0)
    gradient, *rows = rng.normal(size=[4, *LARGE])
    rows = [row - 0.5 * gradient for row in rows]
    # No length of a row matters, nor does one that squares of float32 cannot hold.
    vectors = [(gradient,), *((row * scale,) for row in rows)]

    def found(dtype):
        first, *others = [(tf.constant(v, dtype),) for (v,) in vectors]
        call = tf.function(
            lambda first, *others: correct(first, others, 0.0, "global").gradients,
            jit_compile=compiled,
        )
        return call(first, *others)[0].numpy()

    exact = found(tf.float64)
    assert np.linalg.norm(exact - gradient) > 10
    np.testing.assert_allclose(found(tf.float32), exact, atol=1e-5)


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_a_large_row_that_is_nothing_or_not_finite_counts_for_nothing(bad):
    rng = np.random.default_rng(0)
    gradient, row = rng.normal(size=[2, *LARGE]).astype(np.float32)
    row -= gradient
    broken = row * 0
    broken[3, 4] = bad

    def found(*rows):
        first, *others = [(tf.constant(vector),) for vector in (gradient, *rows)]
        return correct(first, others, 0.0, "per_tensor").gradients[0].numpy()

    np.testing.assert_allclose(found(broken, row), found(row), atol=1e-6)
    assert np.linalg.norm(found(row) - gradient) > 10
