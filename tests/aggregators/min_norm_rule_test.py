"""The rule of least norm: its Gram matrix in single precision is that of double."""

import numpy as np
import pytest
import tensorflow as tf

from tff_algos.aggregators.min_norm_rule import quick_gram_matrix


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e25, 1e-25])
def test_the_quick_gram_matrix_is_that_of_double_precision(scale):
    rng = np.random.default_rng(1)
    columns = np.exp(2 * rng.normal(size=5001))
    rows = rng.normal(size=[7, 3, 1667]) * columns.reshape(3, 1667)
    rows = (rows * scale).astype(np.float32)
    flat = rows.reshape(7, -1).astype(np.float64)
    expected = flat @ flat.T
    norms = np.sqrt(np.diag(expected))
    found = quick_gram_matrix(tf.constant(rows)).numpy()
    assert np.max(np.abs(found - expected) / np.outer(norms, norms)) < 2e-6
    in_double = quick_gram_matrix(tf.constant(rows.astype(np.float64))).numpy()
    np.testing.assert_allclose(in_double, expected, rtol=1e-12)
