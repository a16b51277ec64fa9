"""The text model and its LSTM layer: against Keras and autodiff."""

import numpy as np
import pytest

from tasks.models import initializers, lstm, text
from tests.tasks import models_under_test

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow as tf
import tensorflow_federated as tff

TIME, BATCH, INPUTS, UNITS = 7, 3, 4, 5


def _lstm_arguments(dtype, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((TIME, BATCH, INPUTS), (INPUTS, 4 * UNITS), (UNITS, 4 * UNITS))
    arguments = [tf.constant(rng.normal(size=shape), dtype) for shape in shapes]
    return [*arguments, tf.constant(rng.normal(size=4 * UNITS), dtype)]


def _weighted_sum(outputs):
    return tf.reduce_sum(outputs * tf.cos(tf.cast(tf.range(UNITS), outputs.dtype)))


def _lstm_derivatives(gradient, dtype=tf.float64):
    arguments = _lstm_arguments(dtype)
    with tf.GradientTape() as outer:
        outer.watch(arguments)
        with tf.GradientTape() as inner:
            inner.watch(arguments)
            outputs = lstm.lstm(*arguments, gradient=gradient)
            total = _weighted_sum(outputs**2)
        first = inner.gradient(total, arguments)
        along = tf.add_n([tf.reduce_sum(tf.sin(value)) for value in first])
    return outputs, first, outer.gradient(along, arguments)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function])
def test_fused_lstm_equals_autodiff_to_the_second_derivative(wrap):
    fused = wrap(lambda: _lstm_derivatives("fused"))()
    autodiff = wrap(lambda: _lstm_derivatives("autodiff"))()
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9),
        fused,
        autodiff,
    )


def test_lstm_equals_keras():
    x, *weights = _lstm_arguments(tf.float32)
    layer = tf.keras.layers.LSTM(UNITS, return_sequences=True, time_major=True)
    layer.build(x.shape)
    layer.set_weights([weight.numpy() for weight in weights])
    with tf.GradientTape() as tape:
        expected = layer(x)
        total = _weighted_sum(expected)
    expected_gradients = tape.gradient(total, layer.trainable_variables)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs = lstm.lstm(x, *weights)
        total = _weighted_sum(outputs)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-6)
    for got, want in zip(
        tape.gradient(total, weights), expected_gradients, strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_lstm_refuses_an_unknown_gradient():
    with pytest.raises(ValueError, match="found 'magic'"):
        lstm.lstm(*_lstm_arguments(tf.float32), gradient="magic")


def test_text_model_equals_tffs_keras_model_where_the_target_is_no_padding():
    spec = tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=2)
    task = tff.simulation.baselines.shakespeare.create_character_prediction_task(
        spec, use_synthetic_data=True
    )
    reference = task.model_fn()
    model = text.build_lstm_model(seed=1)
    assert models_under_test.num_weights(model) == 820_522
    weights = models_under_test.constants(model)
    tf.nest.map_structure(
        lambda variable, value: variable.assign(value),
        tuple(reference.trainable_variables),
        weights,
    )
    x, y = models_under_test.characters(seed=2)
    mask = tf.cast(y != text.PADDING_ID, tf.float32)

    def mean_loss(logits):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)

    with tf.GradientTape() as tape:
        expected = reference.predict_on_batch(x)
        expected_loss = mean_loss(expected)
    expected_gradients = tape.gradient(expected_loss, reference.trainable_variables)
    logits = model.predict_on_batch((weights, ()), x, training=True)
    loss, gradients = models_under_test.loss_and_gradients(model, weights, x, y)
    np.testing.assert_allclose(
        logits * mask[..., tf.newaxis],
        expected * mask[..., tf.newaxis],
        rtol=1e-4,
        atol=1e-5,
    )
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for got, want in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(
            got, tf.convert_to_tensor(want), rtol=1e-3, atol=1e-6
        )


def test_text_model_batches_over_clients_and_differentiates_twice():
    model = text.build_lstm_model(vocab_size=11, sequence_length=4, seed=1)
    plain = text.build_lstm_model(11, 4, seed=1, gradient="autodiff")
    rng = np.random.default_rng(0)

    def client(seed):
        tokens = rng.integers(0, 11, (2, 5)).astype(np.int32)
        weights = models_under_test.constants(text.build_lstm_model(11, 4, seed=seed))
        return weights, tf.constant(tokens[:, :-1]), tf.constant(tokens[:, 1:])

    clients = [client(0), client(1)]
    stacked = tf.nest.map_structure(lambda *values: tf.stack(values), *clients)
    batched = tf.vectorized_map(
        lambda client: models_under_test.loss_and_gradients(model, *client), stacked
    )
    for index, one in enumerate(clients):
        tf.nest.map_structure(
            lambda got, expected, index=index: np.testing.assert_allclose(
                got[index], expected, rtol=1e-3, atol=1e-5
            ),
            batched,
            models_under_test.loss_and_gradients(model, *one),
        )

    def hessian_product(model):
        weights, x, y = clients[0]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            _, gradients = models_under_test.loss_and_gradients(model, weights, x, y)
            along = tf.add_n([tf.reduce_sum(gradient) for gradient in gradients])
        return tape.gradient(along, weights)

    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
        hessian_product(model),
        hessian_product(plain),
    )


def test_orthogonal_and_he_normal():
    rng = np.random.default_rng(0)
    matrix = initializers.orthogonal(rng, 8, 32)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(8), atol=1e-6)
    values = initializers.he_normal(rng, 200, 1000)
    assert abs(values.std() - 0.1) < 1e-3
    assert np.abs(values).max() < 2.0 * 0.1 / 0.879
