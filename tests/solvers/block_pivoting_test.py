"""Block pivoting on problems that are solved by hand."""

import numpy as np
import pytest
import tensorflow as tf

from tff_algos.solvers import block_pivoting, min_norm_problem


def solve(gram, upper):
    size = len(gram)
    problem = min_norm_problem.Problem(
        tf.constant(gram, tf.float64),
        tf.abs(tf.constant(gram, tf.float64)),
        tf.zeros(size, tf.float64),
        tf.fill([size], tf.constant(upper, tf.float64)),
        tf.constant(1.0, tf.float64),
        tf.constant(min_norm_problem.EPSILON, tf.float64),
    )
    start = tf.fill([size], tf.constant(1 / size, tf.float64))
    best, count = block_pivoting.solve(problem, min_norm_problem.scale(problem), start)
    return best.weights.numpy(), bool(best.is_optimal), int(count)


@pytest.mark.parametrize(
    ("gram", "upper", "expected"),
    [
        # Orthogonal vectors weigh by their inverse squared norms.
        (np.diag([1.0, 0.25]), 1.0, [0.2, 0.8]),
        (np.diag([1.0, 0.25]), 0.7, [0.3, 0.7]),
        # The shorter one of parallel vectors is the shortest mixture.
        ([[1.0, 0.5], [0.5, 0.25]], 1.0, [0.0, 1.0]),
        (np.eye(4), 1.0, [0.25] * 4),
    ],
)
def test_weights_are_those_computed_by_hand(gram, upper, expected):
    weights, is_optimal, count = solve(gram, upper)
    np.testing.assert_allclose(weights, expected, atol=1e-12)
    assert is_optimal and count <= 3
