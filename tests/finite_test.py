"""What is finite counts, and zeros stand in place of the rest."""

import numpy as np
import pytest
import tensorflow as tf

from tff_algos import finite


@pytest.mark.parametrize(
    ("last", "expected"), [(1.0, True), (np.nan, False), (-np.inf, False)]
)
def test_a_structure_is_finite_if_all_its_tensors_are(last, expected):
    tensors = {"a": tf.zeros([2, 3]), "b": (tf.constant([0.0, last]),)}
    assert finite.all_finite(tensors).numpy() == expected


def test_what_is_not_kept_is_zero_even_where_it_is_not_finite():
    tensors = (tf.constant([np.nan, np.inf, 2.0]), tf.constant([5, 7]))
    floats, integers = finite.zero_unless(tf.constant(False), tensors)
    np.testing.assert_array_equal(floats, [0.0, 0.0, 0.0])
    np.testing.assert_array_equal(integers, [0, 0])


def test_what_is_kept_stays_as_it_is():
    tensors = (tf.constant([1.5, -2.0]), tf.constant([5, 7]))
    floats, integers = finite.zero_unless(tf.constant(True), tensors)
    np.testing.assert_array_equal(floats, [1.5, -2.0])
    np.testing.assert_array_equal(integers, [5, 7])


def test_a_norm_is_over_all_tensors_whatever_their_dtypes():
    floats = (tf.constant([3.0]), tf.constant([[4.0]]))
    assert finite.global_norm(floats).numpy() == np.float32(5)
    mixed = (tf.constant([3.0]), tf.constant([4.0], tf.float64))
    found = finite.global_norm(mixed)
    assert found.dtype == tf.float64 and found.numpy() == 5.0


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_a_norm_of_half_precision_does_not_overflow(dtype):
    found = finite.global_norm((tf.constant([300.0], dtype), tf.constant(400.0, dtype)))
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, 500.0, rtol=1e-2)
