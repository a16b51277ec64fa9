"""Group normalization with an explicit gradient: against NumPy and finite differences."""

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import normalizations
from tests.testing.normalizations import CHANNELS, random_arguments
from tff_algos.layers import group_norm

EPSILON = 1e-5


def _group(x, gamma, beta):
    return group_norm.group_norm(x, gamma, beta, num_groups=2, epsilon=EPSILON)


@pytest.mark.parametrize("shape", [(3,), (3, 5, 2)])
def test_groups_are_normalized_as_in_numpy(shape):
    x, gamma, beta, *_ = random_arguments(shape)
    output = _group(x, gamma, beta)
    for got, example in zip(output, x.numpy(), strict=True):
        for group in (slice(0, 2), slice(2, 4)):
            part = example[..., group]
            normalized = (part - part.mean()) / np.sqrt(part.var() + EPSILON)
            expected = normalized * gamma[group].numpy() + beta[group].numpy()
            np.testing.assert_allclose(got[..., group], expected, rtol=1e-10)


def test_images_may_have_any_size():
    spec = tf.TensorSpec([None, None, None, CHANNELS], tf.float64)
    x, gamma, beta, *_ = random_arguments((3, 5, 2))
    sized = tf.function(lambda x: _group(x, gamma, beta), input_signature=[spec])
    np.testing.assert_array_equal(sized(x), _group(x, gamma, beta))
    assert sized(x[:0]).shape == (0, 5, 2, CHANNELS)


def test_derivatives_equal_finite_differences():
    normalizations.assert_derivatives_equal_finite_differences(_group)


@pytest.mark.parametrize("shape", [(5,), (3, 2, 2)])
def test_clients_are_vectorized(shape):
    normalizations.assert_clients_are_vectorized(_group, shape)
