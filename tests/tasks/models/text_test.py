"""Text models and their recurrent layers: against Keras and autodiff."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks.models import text
from tests.testing import task_models
from tests.testing.speed import some_fast
from tff_algos.layers import gru, lstm

TIME, BATCH, INPUTS, UNITS = 7, 3, 4, 5


KERAS_LAYERS = {
    "lstm": (lstm.lstm, tf.keras.layers.LSTM, (4 * UNITS,)),
    "gru": (gru.gru, tf.keras.layers.GRU, (2, 3 * UNITS)),
}


def _layer_arguments(bias_shape):
    rng = np.random.default_rng(0)
    width = bias_shape[-1]
    shapes = ((TIME, BATCH, INPUTS), (INPUTS, width), (UNITS, width), bias_shape)
    return [tf.constant(rng.normal(size=shape), tf.float32) for shape in shapes]


def _weighted_sum(outputs):
    return tf.reduce_sum(outputs * tf.cos(tf.cast(tf.range(UNITS), outputs.dtype)))


@pytest.mark.parametrize("name", KERAS_LAYERS)
def test_recurrent_layers_equal_keras(name):
    function, keras_layer, bias_shape = KERAS_LAYERS[name]
    x, *weights = _layer_arguments(bias_shape)
    layer = keras_layer(UNITS, return_sequences=True, time_major=True)
    layer.build(x.shape)
    layer.set_weights([weight.numpy() for weight in weights])
    with tf.GradientTape() as tape:
        expected = layer(x)
        total = _weighted_sum(expected)
    expected_gradients = tape.gradient(total, layer.trainable_variables)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs = function(x, *weights)
        total = _weighted_sum(outputs)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-6)
    for got, want in zip(
        tape.gradient(total, weights), expected_gradients, strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def _assert_equal_where_no_padding(model, reference, x, y):
    """Asserts equal logits, loss and gradients, at weights of the model's own."""
    weights = task_models.constants(model)
    tf.nest.map_structure(
        lambda variable, value: variable.assign(value),
        tuple(reference.trainable_variables),
        weights,
    )
    mask = tf.cast(y != text.PADDING_ID, tf.float32)

    def mean_loss(logits):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)

    with tf.GradientTape() as tape:
        expected = reference.predict_on_batch(x)
        expected_loss = mean_loss(expected)
    expected_gradients = tape.gradient(expected_loss, reference.trainable_variables)
    logits = model.predict_on_batch((weights, ()), x, training=True)
    loss, gradients = task_models.loss_and_gradients(model, weights, x, y)
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


def test_text_model_equals_tffs_keras_model_where_the_target_is_no_padding():
    spec = tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=2)
    task = tff.simulation.baselines.shakespeare.create_character_prediction_task(
        spec, use_synthetic_data=True
    )
    model = text.build_lstm_model(seed=1)
    assert task_models.num_weights(model) == 820_522
    x, y = task_models.characters(seed=2)
    _assert_equal_where_no_padding(model, task.model_fn(), x, y)


@pytest.mark.parametrize(("vocab_size", "expected"), [(80, 817_872), (86, 819_462)])
def test_text_model_has_the_published_sizes(vocab_size, expected):
    model = text.build_lstm_model(vocab_size)
    assert task_models.num_weights(model) == expected


def test_word_model_equals_tffs_keras_model_where_the_target_is_no_padding():
    spec = tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=2)
    task = tff.simulation.baselines.stackoverflow.create_word_prediction_task(
        spec, use_synthetic_data=True
    )
    reference = task.model_fn()
    vocab_size = reference.trainable_variables[0].shape[0]
    model = text.build_word_model(vocab_size, seed=1)
    tokens = np.random.default_rng(2).integers(1, vocab_size, (3, 21))
    # Sentences end, as those of the baseline's data do.
    tokens[0, 9:], tokens[1, 1:] = text.PADDING_ID, text.PADDING_ID
    x, y = (tf.constant(ids, tf.int32) for ids in (tokens[:, :-1], tokens[:, 1:]))
    _assert_equal_where_no_padding(model, reference, x, y)


def test_word_model_has_the_published_size():
    model = text.build_word_model()
    assert task_models.num_weights(model) == 4_050_748
    sizes = [weight.size for weight in model.initial_weights[0]]
    assert sizes[0] == 960_384 and sum(sizes[1:4]) == 2_055_560
    assert sum(sizes[4:6]) == 64_416 and sum(sizes[6:]) == 970_388


def test_word_weights_start_as_keras_starts_them():
    model = text.build_word_model(11, 4, seed=1)
    embedding, kernel, recurrent, bias, *dense = model.initial_weights[0]
    assert 0.04 < np.abs(embedding).max() < 0.05
    limit = (6 / (96 + 4 * 670)) ** 0.5
    assert 0.9 * limit < np.abs(kernel).max() < limit
    np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(670), atol=1e-5)
    assert bias.reshape(4, 670).mean(axis=1).tolist() == [0, 1, 0, 0]
    assert not dense[1].any() and not dense[3].any()


def test_gru_model_has_the_published_sizes():
    for vocab_size, expected in ((90, 4_053_594), (86, 4_048_470)):
        model = text.build_gru_model(vocab_size)
        assert task_models.num_weights(model) == expected
    assert model.initial_weights[0][3].shape == (2, 3 * 1024)


def test_gru_model_equals_keras():
    model = text.build_gru_model(90, 80, seed=1, embedding_size=7, units=9)
    reference = tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(90, 7),
            tf.keras.layers.GRU(9, return_sequences=True),
            tf.keras.layers.Dense(90),
        ]
    )
    reference.build([None, 80])
    embedding, *others = task_models.constants(model)
    weights = (20.0 * embedding, *others)
    reference.set_weights([weight.numpy() for weight in weights])
    x, _ = task_models.characters(seed=2)
    logits = model.predict_on_batch((weights, ()), x, training=True)
    assert np.std(logits) > 0.1
    np.testing.assert_allclose(logits, reference(x), rtol=1e-4, atol=1e-5)


def test_gru_weights_start_as_keras_starts_them():
    model = text.build_gru_model(11, 4, seed=1, embedding_size=5, units=6)
    embedding, kernel, recurrent, bias, head, head_bias = model.initial_weights[0]
    assert 0.04 < np.abs(embedding).max() < 0.05
    assert 0.4 < np.abs(kernel).max() < (6 / (5 + 18)) ** 0.5
    np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(6), atol=1e-6)
    assert 0.5 < np.abs(head).max() < (6 / (6 + 11)) ** 0.5
    assert not bias.any() and not head_bias.any()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"vocab_size": 0}, "positive vocab_size, found 0"),
        ({"sequence_length": -1}, "positive sequence_length, found -1"),
        ({"embedding_size": 0}, "positive embedding_size, found 0"),
        ({"units": 0}, "positive units, found 0"),
    ],
)
def test_sizes_of_text_models_are_positive(sizes, message):
    with pytest.raises(ValueError, match=message):
        text.build_gru_model(**sizes)


MODELS = (*KERAS_LAYERS, "word")


def _small_model(name, seed=1, gradient="fused"):
    if name == "lstm":
        return text.build_lstm_model(11, 4, seed=seed, gradient=gradient)
    if name == "word":
        return text.build_word_model(11, 4, seed=seed, gradient=gradient)
    return text.build_gru_model(11, 4, seed, 5, 6, gradient=gradient)


def _client(name, seed):
    tokens = np.random.default_rng(seed).integers(0, 11, (2, 5)).astype(np.int32)
    weights = task_models.constants(_small_model(name, seed))
    return weights, tf.constant(tokens[:, :-1]), tf.constant(tokens[:, 1:])


@pytest.mark.parametrize("name", some_fast(MODELS, ["gru", "word"]))
def test_text_models_batch_over_clients(name):
    model = _small_model(name)
    clients = [_client(name, 0), _client(name, 1)]
    stacked = tf.nest.map_structure(lambda *values: tf.stack(values), *clients)
    batched = tf.vectorized_map(
        lambda client: task_models.loss_and_gradients(model, *client), stacked
    )
    for index, one in enumerate(clients):
        tf.nest.map_structure(
            lambda got, expected, index=index: np.testing.assert_allclose(
                got[index], expected, rtol=1e-3, atol=1e-5
            ),
            batched,
            task_models.loss_and_gradients(model, *one),
        )


@pytest.mark.parametrize("name", some_fast(KERAS_LAYERS, ["gru"]))
def test_text_models_differentiate_twice(name):
    weights, x, y = _client(name, 0)

    def hessian_product(gradient):
        model = _small_model(name, gradient=gradient)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            _, gradients = task_models.loss_and_gradients(model, weights, x, y)
            along = tf.add_n([tf.reduce_sum(gradient) for gradient in gradients])
        return tape.gradient(along, weights)

    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
        hessian_product("fused"),
        hessian_product("autodiff"),
    )
