"""The min-norm problem: its gap, its scale, and what lies within its bounds."""

import numpy as np
import pytest
import tensorflow as tf

from tff_algos.solvers import min_norm_problem


def problem(gram, upper=1.0):
    size = len(gram)
    return min_norm_problem.Problem(
        tf.constant(gram, tf.float64),
        tf.abs(tf.constant(gram, tf.float64)),
        tf.zeros(size, tf.float64),
        tf.fill([size], tf.constant(upper, tf.float64)),
        tf.constant(1.0, tf.float64),
        tf.constant(min_norm_problem.EPSILON, tf.float64),
    )


def judged(gram, weights):
    weights = tf.constant(weights, tf.float64)
    return min_norm_problem.judge(problem(gram), weights)


def test_the_gap_is_zero_at_the_optimum_and_that_of_the_best_vertex_elsewhere():
    best, vertex = judged(np.eye(2), [0.5, 0.5]), judged(np.eye(2), [1.0, 0.0])
    assert best.gap.numpy() == 0.0 and best.is_optimal
    assert vertex.gap.numpy() == 1.0 and not vertex.is_optimal
    assert min_norm_problem.better(vertex, best).gap.numpy() == 0.0
    assert min_norm_problem.better(best, vertex).weights.numpy().tolist() == [0.5, 0.5]


def test_scaled_vectors_have_length_one():
    scaled = min_norm_problem.scale(problem([[1.0, 0.25], [0.25, 0.25]]))
    np.testing.assert_allclose(scaled.cosines, [[1.0, 0.5], [0.5, 1.0]], rtol=1e-15)
    np.testing.assert_allclose(scaled.inverses, [1.0, 2.0], rtol=1e-15)
    assert scaled.noise.numpy() == min_norm_problem.EPSILON


def test_negative_curvature_tells_the_noise():
    scaled = min_norm_problem.scale(problem([[1.0, 1.5], [1.5, 1.0]]))
    assert scaled.noise.numpy() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [([0.5, 0.2], [0.5, 0.5]), ([0.9, 0.7], [0.9, 0.1]), ([-1.0, 0.4], [0.3, 0.7])],
)
def test_what_the_sum_lacks_goes_to_the_shortest_vector(weights, expected):
    upper = 0.7 if weights[0] < 0 else 1.0
    found = min_norm_problem.within(
        problem(np.diag([1.0, 0.25]), upper), tf.constant(weights, tf.float64)
    )
    np.testing.assert_allclose(found, expected, atol=1e-15)


def test_a_restricted_gram_matrix_is_zero_but_in_some_rows_and_columns():
    gram = tf.constant(np.arange(9.0).reshape(3, 3))
    found = min_norm_problem.restrict(gram, tf.constant([True, False, True]))
    np.testing.assert_array_equal(found, [[0, 0, 2], [0, 0, 0], [6, 0, 8]])
