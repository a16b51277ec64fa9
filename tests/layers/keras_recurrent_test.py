"""Keras' recurrent layers with our gradients: against Keras' own."""

import functools
import inspect

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tf_keras

import tff_algos
from tests.testing.keras_rounds import round_of_fed_avg

TIME, BATCH, INPUTS, UNITS = 5, 3, 2, 4
PAIRS = {
    "lstm": (tff_algos.layers.LSTM, tf_keras.layers.LSTM),
    "gru": (tff_algos.layers.GRU, tf_keras.layers.GRU),
}


@pytest.fixture(params=PAIRS)
def pair(request):
    return PAIRS[request.param]


def _with_weights(pair, **kwargs):
    """Returns our layer and Keras', with the same random weights."""
    own, reference = (layer(UNITS, **kwargs) for layer in pair)
    for layer in (own, reference):
        layer.build((BATCH, TIME, INPUTS))
    rng = np.random.default_rng(0)
    reference.set_weights([rng.normal(size=w.shape) for w in own.get_weights()])
    own.set_weights(reference.get_weights())
    return own, reference


def _x(dtype="float64"):
    return tf.constant(
        np.random.default_rng(1).normal(size=(BATCH, TIME, INPUTS)), dtype
    )


def _outputs_and_gradients(layer, x, **kwargs):
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = tf.nest.flatten(layer(x, **kwargs))
        loss = tf.add_n([tf.reduce_sum(tf.sin(3.0 * output)) for output in outputs])
    return outputs, tape.gradient(loss, [x, *layer.trainable_variables])


def _assert_equal(pair, x, tolerance, **kwargs):
    own, reference = (_outputs_and_gradients(layer, x, **kwargs) for layer in pair)
    assert len(own[0]) == len(reference[0])
    for got, expected in zip(
        tf.nest.flatten(own), tf.nest.flatten(reference), strict=True
    ):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"return_sequences": True},
        {"return_sequences": True, "go_backwards": True},
        {"time_major": True},
        {"time_major": True, "return_sequences": True},
        {"use_bias": False},
    ],
    ids=lambda arguments: "-".join(arguments) or "defaults",
)
def test_outputs_and_gradients_equal_keras(pair, arguments):
    layers = _with_weights(pair, dtype="float64", **arguments)
    x = _x()
    if arguments.get("time_major"):
        x = tf.transpose(x, [1, 0, 2])
    _assert_equal(layers, x, 1e-10)


def test_outputs_and_gradients_equal_keras_in_single_precision(pair):
    _assert_equal(_with_weights(pair, return_sequences=True), _x("float32"), 1e-5)


def test_the_gru_returns_its_final_state():
    layers = _with_weights(PAIRS["gru"], dtype="float64", return_state=True)
    _assert_equal(layers, _x(), 1e-10)


def test_dropout_is_keras_and_acts_in_training_alone(pair):
    def outputs(layer_class, training):
        tf_keras.utils.set_random_seed(1)
        layer = layer_class(UNITS, dropout=0.5)
        return layer(_x("float32"), training=training)

    for training in (True, False):
        own, reference = (outputs(layer, training) for layer in pair)
        np.testing.assert_allclose(own, reference, rtol=1e-5, atol=1e-6)
    assert np.abs(outputs(pair[0], True) - outputs(pair[0], False)).max() > 0.01


def test_in_a_computation_every_step_has_a_mask_of_its_own_as_in_keras(pair):
    def zeroed_inputs(layer_class):
        with tf.GradientTape() as tape:
            x = tf.ones([BATCH, TIME, 50])
            tape.watch(x)
            layer = layer_class(UNITS, dropout=0.5, return_sequences=True)
            total = tf.reduce_sum(layer(x, training=True))
        return tf.equal(tape.gradient(total, x), 0)

    for layer_class in pair:
        made = tff.tensorflow.computation(functools.partial(zeroed_inputs, layer_class))
        zeroed = np.asarray(made())
        assert 0.4 < zeroed.mean() < 0.6
        assert 0.4 < (zeroed[:, 1:] == zeroed[:, :-1]).mean() < 0.6


def test_arguments_weights_and_configurations_are_keras(pair):
    assert inspect.signature(pair[0]) == inspect.signature(pair[1])
    layers = _with_weights(pair, dropout=0.1, kernel_regularizer="l2", name="same")
    own, reference = layers
    assert [w.name for w in own.weights] == [w.name for w in reference.weights]
    assert [w.shape for w in own.weights] == [w.shape for w in reference.weights]
    assert own.get_config() == reference.get_config()
    for to in pair:
        for source in layers:
            assert to.from_config(source.get_config()).get_config() == (
                source.get_config()
            )


def test_initial_weights_are_keras(pair):
    found = []
    for layer_class in pair:
        tf_keras.utils.set_random_seed(1)
        layer = layer_class(UNITS)
        layer.build((BATCH, TIME, INPUTS))
        found.append(layer.get_weights())
    for own, reference in zip(*found, strict=True):
        np.testing.assert_array_equal(own, reference)


def _model(layer_class):
    tf_keras.utils.set_random_seed(1)
    return tf_keras.Sequential(
        [
            tf_keras.layers.Embedding(7, INPUTS, input_length=TIME),
            layer_class(UNITS, return_sequences=True),
            tf_keras.layers.Flatten(),  # Needs the number of steps.
            tf_keras.layers.Dense(3),
        ]
    )


def test_a_saved_model_is_loaded_with_its_layer(pair, tmp_path):
    model = _model(pair[0])
    model.save(tmp_path / "model.keras")
    loaded = tf_keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[1]) is pair[0]
    x = np.arange(2 * TIME).reshape(2, TIME) % 7
    np.testing.assert_array_equal(loaded(x), model(x))


def test_a_round_of_fed_avg_equals_that_with_keras_layer(pair):
    rng = np.random.default_rng(0)
    clients = [
        (
            rng.integers(7, size=(4, TIME), dtype=np.int32),
            rng.integers(3, size=4, dtype=np.int32),
        )
        for _ in range(2)
    ]
    (before, own), (_, reference) = (
        round_of_fed_avg(lambda layer=layer: _model(layer), clients) for layer in pair
    )
    for start, got, expected in zip(before, own, reference, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        assert np.abs(got - start).max() > 1e-4


@pytest.mark.parametrize(
    ("arguments", "expected", "found"),
    [
        ({"activation": "relu"}, "activation='tanh'", "'relu'"),
        ({"recurrent_activation": "relu"}, "recurrent_activation='sigmoid'", "'relu'"),
        ({"recurrent_dropout": 0.5}, "recurrent_dropout=0.0", "0.5"),
        ({"stateful": True}, "stateful=False", "True"),
        ({"unroll": True}, "unroll=False", "True"),
    ],
)
def test_unsupported_arguments_are_one_line(pair, arguments, expected, found):
    with pytest.raises(ValueError) as raised:
        pair[0](UNITS, **arguments)
    message = str(raised.value)
    assert f"expected {expected}, found {found}" in message and "\n" not in message


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("lstm", {"return_state": True}, "return_state=False, found True"),
        ("gru", {"reset_after": False}, "reset_after=True, found False"),
    ],
)
def test_arguments_that_one_layer_does_not_support(name, arguments, expected):
    with pytest.raises(ValueError, match=expected):
        PAIRS[name][0](UNITS, **arguments)


def test_masks_states_and_ragged_inputs_are_refused(pair):
    layer, x = pair[0](UNITS), _x("float32")
    states = [tf.zeros([BATCH, UNITS])] * (2 if pair is PAIRS["lstm"] else 1)
    with pytest.raises(ValueError, match="expected mask=None"):
        layer(x, mask=tf.ones([BATCH, TIME], tf.bool))
    with pytest.raises(ValueError, match="expected initial_state=None"):
        layer(x, initial_state=states)
    with pytest.raises(ValueError, match="expected dense inputs"):
        layer(tf.RaggedTensor.from_tensor(x))
    embedding = tf_keras.layers.Embedding(7, INPUTS, mask_zero=True)
    with pytest.raises(ValueError, match="mask_zero"):
        tf_keras.Sequential([embedding, layer])
    inputs = tf_keras.Input([TIME, INPUTS])
    with pytest.raises(ValueError, match="expected initial_state=None"):
        layer(inputs, initial_state=[tf_keras.Input([UNITS]) for _ in states])


def test_outputs_keep_the_static_number_of_steps(pair):
    inputs = tf_keras.Input([TIME, INPUTS])
    outputs = pair[0](UNITS, return_sequences=True)(inputs)
    assert outputs.shape.as_list() == [None, TIME, UNITS]
