"""Initial weights: orthonormal rows, truncated normals, ranges of uniforms."""

import numpy as np

from tasks.models import initializers


def test_orthogonal_rows_are_orthonormal_and_he_normal_is_truncated():
    rng = np.random.default_rng(0)
    matrix = initializers.orthogonal(rng, 8, 32)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(8), atol=1e-6)
    values = initializers.he_normal(rng, 200, 1000)
    assert abs(values.std() - 0.1) < 1e-3
    assert np.abs(values).max() < 2.0 * 0.1 / 0.879
