"""Logistic regression: against closed forms."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import linear
from tests.testing import task_models


@pytest.mark.parametrize(
    ("num_features", "num_classes", "expected"), [(99, 2, 200), (784, 10, 7_850)]
)
def test_models_have_the_expected_sizes_and_start_from_zero(
    num_features, num_classes, expected
):
    model = linear.build_linear_model(num_features, num_classes)
    assert task_models.num_weights(model) == expected
    assert all(type(weight) is np.ndarray for weight in model.initial_weights[0])
    assert not any(weight.any() for weight in model.initial_weights[0])


def test_a_seed_draws_weights_within_the_inverse_root_of_the_features():
    kernel, bias = linear.build_linear_model(99, 200, seed=1).initial_weights[0]
    limit = 99**-0.5
    for weights in (kernel, bias):
        assert weights.dtype == np.float32
        assert 0.9 * limit < np.max(np.abs(weights)) <= limit
        np.testing.assert_allclose(np.std(weights), limit / 3**0.5, rtol=0.1)
    other = linear.build_linear_model(99, 200, seed=2).initial_weights[0][0]
    assert np.mean(kernel != other) > 0.99


def test_what_cannot_be_built_is_refused():
    with pytest.raises(ValueError, match="positive num_features, found 0"):
        linear.build_linear_model(0, 2)
    with pytest.raises(ValueError, match="positive num_classes, found -1"):
        linear.build_linear_model(3, -1)


def test_loss_and_gradients_are_those_of_softmax_regression():
    model = linear.build_linear_model(4, 3)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 4), np.float32)
    y = np.array([0, 2, 1, 1, 2], np.int32)
    kernel, bias = (rng.standard_normal(shape, np.float32) for shape in ((4, 3), (3,)))
    weights = (tf.constant(kernel), tf.constant(bias))
    loss, gradients = task_models.loss_and_gradients(model, weights, x, y)

    scores = np.exp(x @ kernel + bias)
    probabilities = scores / scores.sum(1, keepdims=True)
    error = (probabilities - np.eye(3)[y]) / 5
    expected_loss = -np.log(probabilities[np.arange(5), y]).mean()
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    np.testing.assert_allclose(gradients[0], x.T @ error, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradients[1], error.sum(0), rtol=1e-4, atol=1e-6)


def test_the_first_loss_is_that_of_a_guess():
    model = linear.build_linear_model(4, 2)
    logits = model.predict_on_batch(model.initial_weights, tf.ones([3, 4]))
    loss = model.loss(logits, tf.constant([0, 1, 1]))
    np.testing.assert_allclose(loss, np.log(2.0), rtol=1e-6)
