"""Image models: against TFF's Keras baselines, and their dropout."""

from typing import get_args

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks.models import image
from tests.testing import task_models


@pytest.mark.parametrize(
    ("model_id", "only_digits", "expected"),
    [
        ("cnn", True, 1_663_370),
        ("cnn", False, 1_690_046),
        ("cnn_dropout", True, 1_199_882),
        ("cnn_dropout", False, 1_206_590),
        ("cnn_dense_dropout", True, 1_663_370),
        ("cnn_dense_dropout", False, 1_690_046),
        ("2nn", True, 199_210),
        ("2nn", False, 209_662),
    ],
)
def test_image_models_have_the_published_sizes(model_id, only_digits, expected):
    model = image.build_emnist_model(model_id, only_digits, seed=0)
    assert task_models.num_weights(model) == expected
    assert all(type(weight) is np.ndarray for weight in model.initial_weights[0])


def test_initial_weights_are_a_function_of_the_seed():
    first, again, other = (
        image.build_emnist_model("2nn", True, seed).initial_weights[0]
        for seed in (1, 1, 2)
    )
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.ndim == 1 or np.any(a != c)


def test_unknown_image_model_is_refused_by_name():
    with pytest.raises(image.UnknownModelError, match="cnn_dropout.*'resnet'"):
        image.build_emnist_model("resnet", True, seed=0)


@pytest.mark.parametrize("model_id", ["cnn", "cnn_dropout", "2nn"])
def test_image_models_equal_tffs_keras_models(model_id):
    spec = tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=2)
    task = tff.simulation.baselines.emnist.create_character_recognition_task(
        spec,
        model_id=model_id,
        only_digits=True,
        debug_seed=1,
        use_synthetic_data=True,
    )
    reference = task.model_fn()
    model = image.build_emnist_model(model_id, True, seed=3)
    weights = task_models.constants(model)
    tf.nest.map_structure(
        lambda variable, value: variable.assign(value),
        tuple(reference.trainable_variables),
        weights,
    )
    x, y = task_models.images(seed=4)

    with tf.GradientTape() as tape:
        probabilities = reference.predict_on_batch(x, training=False)
        expected_loss = tf.reduce_mean(
            -tf.math.log(tf.gather(probabilities, y, batch_dims=1))
        )
    expected_gradients = tape.gradient(expected_loss, reference.trainable_variables)
    logits = model.predict_on_batch((weights, ()), x, training=False)
    loss, gradients = task_models.loss_and_gradients(
        model, weights, x, y, training=False
    )

    np.testing.assert_allclose(tf.nn.softmax(logits), probabilities, rtol=1e-4)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("model_id", get_args(image.ModelId))
def test_image_models_batch_over_clients_with_different_weights(model_id):
    model = image.build_emnist_model(model_id, True, seed=0)
    clients = [
        (
            tuple(
                tf.constant(weight)
                for weight in image.build_emnist_model(
                    model_id, True, seed
                ).initial_weights[0]
            ),
            *task_models.images(seed, num_examples=2),
        )
        for seed in (0, 1)
    ]
    stacked = tf.nest.map_structure(lambda *values: tf.stack(values), *clients)
    batched = tf.vectorized_map(
        lambda client: task_models.loss_and_gradients(model, *client), stacked
    )
    for index, client in enumerate(clients):
        tf.nest.map_structure(
            lambda got, expected, index=index: np.testing.assert_allclose(
                got[index], expected, rtol=1e-3, atol=1e-5
            ),
            batched,
            task_models.loss_and_gradients(model, *client),
        )


@pytest.mark.parametrize("model_id", get_args(image.ModelId))
def test_image_models_differentiate_twice(model_id):
    model = image.build_emnist_model(model_id, True, seed=0)
    weights = task_models.constants(model)
    x, y = task_models.images(seed=1, num_examples=2)
    rng = np.random.default_rng(2)
    u, v = ([rng.standard_normal(w.shape, np.float32) for w in weights] for _ in "uv")

    def inner(a, b):
        return tf.add_n([tf.reduce_sum(p * q) for p, q in zip(a, b, strict=True)])

    def hessian_product(direction):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            _, gradients = task_models.loss_and_gradients(model, weights, x, y)
            along = inner(gradients, direction)
        return tape.gradient(along, weights)

    product = inner(u, hessian_product(v))
    assert abs(product) > 0.1
    np.testing.assert_allclose(product, inner(v, hessian_product(u)), rtol=1e-3)


@pytest.mark.parametrize("model_id", ["cnn_dropout", "cnn_dense_dropout"])
def test_dropout_is_a_function_of_weights_and_batch(model_id):
    model = image.build_emnist_model(model_id, True, seed=0)
    weights = task_models.constants(model)
    x, _ = task_models.images(seed=1)
    moved = (*weights[:-1], weights[-1] + 1e-3)

    def logits(weights, x, training=True):
        return model.predict_on_batch((weights, ()), x, training=training).numpy()

    np.testing.assert_array_equal(logits(weights, x), logits(weights, x))
    assert np.abs(logits(weights, x) - logits(moved, x)).max() > 0.01
    reversed_batch = logits(weights, x[::-1])[::-1]
    assert np.abs(logits(weights, x) - reversed_batch).max() > 0.01
    assert np.abs(logits(weights, x) - logits(weights, x, training=False)).max() > 0.01


def test_dense_dropout_drops_half_of_cnns_last_hidden_layer():
    cnn, dropped = (
        image.build_emnist_model(model_id, True, seed=0)
        for model_id in ("cnn", "cnn_dense_dropout")
    )
    *weights, _, bias = task_models.constants(cnn)
    x, _ = task_models.images(seed=1, num_examples=500)

    def hidden(model, training):
        """Returns hidden units 0 to 9, copied to the logits."""
        copied = (*weights, tf.eye(512, 10), bias)
        return model.predict_on_batch((copied, ()), x, training=training).numpy()

    full = hidden(cnn, training=True)
    np.testing.assert_array_equal(hidden(dropped, training=False), full)
    active = full > 0
    kept = hidden(dropped, training=True)[active] / full[active]
    assert set(np.round(kept, 5)) == {0.0, 2.0}
    assert abs((kept == 0).mean() - 0.5) < 0.05
