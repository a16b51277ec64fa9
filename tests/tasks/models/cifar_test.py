"""The models of CIFAR-10: against Keras layers, its dropout, its derivatives."""

from typing import get_args

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tasks.models import cifar, image
from tests.testing import task_models

MODEL_IDS = get_args(cifar.ModelId)


def _images(seed, num_examples=4):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_examples, 32, 32, 3), np.float32)
    return tf.constant(x), tf.constant(rng.integers(0, 10, num_examples), tf.int32)


@pytest.mark.parametrize(
    ("num_classes", "expected"), [(10, 1_756_426), (100, 1_773_796)]
)
def test_the_model_has_the_published_size(num_classes, expected):
    model = cifar.build_cifar_model("cnn", num_classes, seed=0)
    assert task_models.num_weights(model) == expected
    sizes = [weight.size for weight in model.initial_weights[0]]
    layers = [kernel + bias for kernel, bias in zip(sizes[::2], sizes[1::2])]
    assert layers[:4] == [4_864, 102_464, 1_573_248, 73_920]
    assert all(type(weight) is np.ndarray for weight in model.initial_weights[0])


def test_the_model_with_response_normalization_has_the_published_size():
    model = cifar.build_cifar_model("cnn_lrn", 10, seed=0)
    assert task_models.num_weights(model) == 797_962
    sizes = [weight.size for weight in model.initial_weights[0]]
    layers = [kernel + bias for kernel, bias in zip(sizes[::2], sizes[1::2])]
    assert layers == [4_864, 102_464, 614_784, 73_920, 1_930]


@pytest.mark.parametrize("model_id", MODEL_IDS)
def test_initial_weights_are_a_function_of_the_seed(model_id):
    first, again, other = (
        cifar.build_cifar_model(model_id, 10, seed).initial_weights[0]
        for seed in (1, 1, 2)
    )
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.ndim == 1 or np.any(a != c)


def test_what_cannot_be_built_is_refused():
    with pytest.raises(
        image.UnknownModelError, match="out of cnn, cnn_lrn, found 'resnet'"
    ):
        cifar.build_cifar_model("resnet", 10, seed=0)
    with pytest.raises(ValueError, match="positive num_classes, found 0"):
        cifar.build_cifar_model("cnn", 0, seed=0)


def _response_normalized(x):
    """Returns what PyTorch's `LocalResponseNorm(2)` does, channels last, by NumPy."""
    energy = np.zeros_like(x)
    for channel in range(x.shape[-1]):
        # A window of two around the channel: one before it, none after it.
        window = x[..., max(channel - 1, 0) : channel + 1]
        energy[..., channel] = np.sum(window**2, axis=-1)
    return x / (1.0 + (1e-4 / 2) * energy) ** 0.75


def test_response_normalization_is_pytorchs():
    # Large, so that the denominators are far from one.
    x = 200.0 * np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype("f4")
    found = cifar.pairwise_response_normalization(tf.constant(x))
    np.testing.assert_allclose(found, _response_normalized(x), rtol=1e-5)
    assert np.abs(found / x).max() < 1.0 and np.abs(found / x).min() < 0.5


def test_response_normalization_gives_numbers_computed_by_hand():
    found = cifar.pairwise_response_normalization(
        tf.constant([[100.0, 0.0, 300.0]]), alpha=2e-4, beta=0.5, k=3.0
    )
    np.testing.assert_allclose(found, [[50.0, 0.0, 300.0 / 12.0**0.5]], rtol=1e-6)


def test_response_normalization_of_zeros_has_gradients():
    x = tf.zeros([1, 4])
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(cifar.pairwise_response_normalization(x))
    np.testing.assert_array_equal(tape.gradient(total, x), np.ones((1, 4)))


def _keras_model(model_id):
    layers = tf_keras.layers
    normalized = layers.Lambda(cifar.pairwise_response_normalization)
    convolutions = {
        "cnn": [
            layers.Conv2D(64, 5, padding="same", activation="relu"),
            layers.MaxPool2D(3, 2, padding="same"),
            layers.Conv2D(64, 5, padding="same", activation="relu"),
            layers.MaxPool2D(3, 2, padding="same"),
        ],
        "cnn_lrn": [
            layers.Conv2D(64, 5, activation="relu"),
            layers.MaxPool2D(2),
            normalized,
            layers.Conv2D(64, 5, activation="relu"),
            normalized,
            layers.MaxPool2D(2),
        ],
    }
    return tf_keras.Sequential(
        [
            *convolutions[model_id],
            layers.Flatten(),
            layers.Dense(384, activation="relu"),
            layers.Dense(192, activation="relu"),
            layers.Dense(10),
        ]
    )


@pytest.mark.parametrize("model_id", MODEL_IDS)
def test_without_dropout_it_equals_keras_layers(model_id):
    model = cifar.build_cifar_model(model_id, 10, seed=3)
    weights = task_models.constants(model)
    x, y = _images(seed=4)
    reference = _keras_model(model_id)
    reference.build(x.shape)
    reference.set_weights(weights)
    with tf.GradientTape() as tape:
        expected_logits = reference(x)
        expected_loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(y, expected_logits)
        )
    expected_gradients = tape.gradient(expected_loss, reference.trainable_variables)
    logits = model.predict_on_batch((weights, ()), x, training=False)
    loss, gradients = task_models.loss_and_gradients(
        model, weights, x, y, training=False
    )
    np.testing.assert_allclose(logits, expected_logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-5)


def test_without_dropout_training_changes_nothing():
    model = cifar.build_cifar_model("cnn_lrn", 10, seed=0)
    x, _ = _images(seed=1)
    training, plain = (
        model.predict_on_batch(model.initial_weights, x, training=training)
        for training in (True, False)
    )
    np.testing.assert_array_equal(training, plain)


def test_dropout_is_a_function_of_weights_and_batch():
    model = cifar.build_cifar_model("cnn", 10, seed=0)
    weights = task_models.constants(model)
    x, _ = _images(seed=1)
    moved = (*weights[:-1], weights[-1] + 1e-3)

    def logits(weights, x, training=True):
        return model.predict_on_batch((weights, ()), x, training=training).numpy()

    np.testing.assert_array_equal(logits(weights, x), logits(weights, x))
    assert np.abs(logits(weights, x) - logits(moved, x)).max() > 0.01
    reversed_batch = logits(weights, x[::-1])[::-1]
    assert np.abs(logits(weights, x) - reversed_batch).max() > 0.01
    assert np.abs(logits(weights, x) - logits(weights, x, training=False)).max() > 0.01


def test_half_of_the_hidden_units_are_dropped():
    # A network whose last hidden units are all one shows its mask in the logits.
    model = cifar.build_cifar_model("cnn", 192, seed=0)
    weights = [np.zeros_like(weight) for weight in model.initial_weights[0]]
    bias_2, kernel = weights[-3], weights[-2]
    bias_2[:] = 1.0
    kernel[:] = np.eye(192)
    weights = tuple(tf.constant(weight) for weight in weights)
    x, _ = _images(seed=5, num_examples=50)
    kept = model.predict_on_batch((weights, ()), x, training=True).numpy()
    assert set(np.unique(kept)) == {0.0, 2.0}
    assert abs(np.mean(kept == 0.0) - 0.5) < 0.02


@pytest.mark.parametrize("model_id", MODEL_IDS)
def test_it_batches_over_clients_with_different_weights(model_id):
    model = cifar.build_cifar_model(model_id, 10, seed=0)
    clients = [
        (
            tuple(
                tf.constant(weight)
                for weight in cifar.build_cifar_model(
                    model_id, 10, seed
                ).initial_weights[0]
            ),
            *_images(seed, num_examples=2),
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


def _hessian_product(model, weights, x, y, direction):
    with tf.GradientTape() as tape:
        tape.watch(weights)
        _, gradients = task_models.loss_and_gradients(model, weights, x, y)
        along = _inner(gradients, direction)
    return tape.gradient(along, weights)


def _inner(a, b):
    return tf.add_n([tf.reduce_sum(p * q) for p, q in zip(a, b, strict=True)])


@pytest.mark.parametrize("model_id", MODEL_IDS)
def test_it_differentiates_twice(model_id):
    model = cifar.build_cifar_model(model_id, 10, seed=0)
    weights = task_models.constants(model)
    x, y = _images(seed=1, num_examples=2)
    rng = np.random.default_rng(2)
    u, v = ([rng.standard_normal(w.shape, np.float32) for w in weights] for _ in "uv")
    product = _inner(u, _hessian_product(model, weights, x, y, v))
    assert abs(product) > 0.1
    np.testing.assert_allclose(
        product, _inner(v, _hessian_product(model, weights, x, y, u)), rtol=1e-3
    )


@pytest.mark.parametrize("model_id", MODEL_IDS)
def test_second_derivatives_batch_over_clients(model_id):
    model = cifar.build_cifar_model(model_id, 10, seed=0)
    weights = task_models.constants(model)
    batches = [_images(seed, num_examples=2) for seed in (0, 1)]
    rng = np.random.default_rng(2)
    v = [rng.standard_normal(w.shape, np.float32) for w in weights]
    batched = tf.vectorized_map(
        lambda batch: _hessian_product(model, weights, *batch, v)[0],
        tf.nest.map_structure(lambda *values: tf.stack(values), *batches),
    )
    for got, batch in zip(batched, batches, strict=True):
        expected = _hessian_product(model, weights, *batch, v)[0].numpy()
        scale = np.abs(expected).max()
        np.testing.assert_allclose(got / scale, expected / scale, atol=1e-4)
