"""The model of Fashion-MNIST: against Keras layers, its dropout, its derivatives."""

import numpy as np
import tensorflow as tf
import tf_keras

from tasks.models import fashion, layers
from tests.testing import task_models


def test_the_model_has_the_published_size():
    model = fashion.build_fashion_model(seed=0)
    assert task_models.num_weights(model) == 21_840
    sizes = [weight.size for weight in model.initial_weights[0]]
    layers = [kernel + bias for kernel, bias in zip(sizes[::2], sizes[1::2])]
    assert layers == [260, 5_020, 16_050, 510]
    assert all(type(weight) is np.ndarray for weight in model.initial_weights[0])


def test_initial_weights_are_a_function_of_the_seed():
    first, again, other = (
        fashion.build_fashion_model(seed).initial_weights[0] for seed in (1, 1, 2)
    )
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.ndim == 1 or np.any(a != c)


def _keras_model():
    layers = tf_keras.layers
    return tf_keras.Sequential(
        [
            layers.Conv2D(10, 5),
            layers.MaxPool2D(2),
            layers.ReLU(),
            layers.Conv2D(20, 5),
            layers.SpatialDropout2D(0.5),
            layers.MaxPool2D(2),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(50, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10),
        ]
    )


def test_without_dropout_it_equals_keras_layers():
    model = fashion.build_fashion_model(seed=3)
    weights = task_models.constants(model)
    x, y = task_models.images(seed=4)
    reference = _keras_model()
    reference.build(x.shape)
    reference.set_weights(weights)
    with tf.GradientTape() as tape:
        expected_logits = reference(x, training=False)
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


def test_dropout_is_a_function_of_weights_and_batch():
    model = fashion.build_fashion_model(seed=0)
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


def test_half_of_the_channels_are_dropped_and_each_as_a_whole():
    x = tf.ones([60, 8, 8, 20])
    kept = layers.spatial_dropout(x, 0.5, tf.constant(7, tf.uint32), salt=1).numpy()
    assert set(np.unique(kept)) == {0.0, 2.0}
    np.testing.assert_array_equal(kept.max(axis=(1, 2)), kept.min(axis=(1, 2)))
    mask = kept[:, 0, 0, :] > 0
    assert abs(mask.mean() - 0.5) < 0.05
    # Images and channels have masks of their own.
    assert len(np.unique(mask, axis=0)) == 60 and len(np.unique(mask, axis=1).T) == 20


def test_channels_are_dropped_after_the_second_convolution():
    model = fashion.build_fashion_model(seed=0)
    weights = [np.zeros_like(weight) for weight in model.initial_weights[0]]
    _, _, _, bias_2, hidden_kernel, _, kernel, _ = weights
    bias_2[:] = 1.0
    # Ten channels, each by itself through the hidden layer to a logit.
    for number in range(10):
        hidden_kernel.reshape(4, 4, 20, 50)[:, :, number, number] = 1.0 / 16.0
        kernel[number, number] = 1.0
    weights = tuple(tf.constant(weight) for weight in weights)
    x, _ = task_models.images(seed=5, num_examples=300)
    logits = model.predict_on_batch((weights, ()), x, training=True).numpy()
    # Either dropout doubles what it keeps; a channel is dropped whole or not at all.
    assert set(np.unique(logits)) == {0.0, 4.0}
    assert abs(np.mean(logits == 0.0) - 0.75) < 0.03
    plain = model.predict_on_batch((weights, ()), x, training=False).numpy()
    np.testing.assert_array_equal(plain, np.ones((300, 10)))


def test_it_batches_over_clients_with_different_weights():
    model = fashion.build_fashion_model(seed=0)
    clients = [
        (
            task_models.constants(fashion.build_fashion_model(seed)),
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


def test_it_differentiates_twice():
    model = fashion.build_fashion_model(seed=0)
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
