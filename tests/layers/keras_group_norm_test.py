"""Keras' group normalization with our gradient: against Keras' own."""

import inspect

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tff_algos
from tests.testing.keras_rounds import round_of_fed_avg

GROUPS, CHANNELS = 2, 6
PAIR = (tff_algos.layers.GroupNormalization, tf_keras.layers.GroupNormalization)


def _pair(shape, **arguments):
    """Returns our layer and Keras', with the same random weights."""
    own, reference = (layer(GROUPS, **arguments) for layer in PAIR)
    for layer in (own, reference):
        layer.build(shape)
    rng = np.random.default_rng(0)
    reference.set_weights([rng.normal(size=w.shape) for w in own.get_weights()])
    own.set_weights(reference.get_weights())
    return own, reference


def _outputs_and_gradients(layer, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = layer(x)
        loss = tf.reduce_sum(tf.sin(3.0 * tf.cast(outputs, tf.float64)))
    return [outputs, *tape.gradient(loss, [x, *layer.trainable_variables])]


def _assert_equal(input_dtype, tolerance, shape=(3, 4, 5, CHANNELS), **arguments):
    x = tf.constant(np.random.default_rng(1).normal(2.0, 3.0, size=shape), input_dtype)
    layers = _pair(shape, **arguments)
    for got, expected in zip(
        *(_outputs_and_gradients(layer, x) for layer in layers), strict=True
    ):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"epsilon": 0.1},
        {"scale": False},
        {"center": False},
        {"scale": False, "center": False},
        {"axis": 3},
    ],
    ids=lambda arguments: "-".join(arguments) or "defaults",
)
def test_outputs_and_gradients_equal_keras(arguments):
    _assert_equal("float64", 1e-10, dtype="float64", **arguments)


@pytest.mark.parametrize("shape", [(3, CHANNELS), (3, 7, CHANNELS)])
def test_inputs_have_any_number_of_axes(shape):
    _assert_equal("float64", 1e-10, shape, dtype="float64")


def test_outputs_and_gradients_equal_keras_in_other_precisions():
    _assert_equal("float32", 1e-4)
    # Keras computes differences from the mean in 16 bits.
    _assert_equal("float16", 0.05, dtype="mixed_float16")


def test_one_group_per_channel_is_minus_one():
    own, reference = (layer(-1) for layer in PAIR)
    x = tf.random.stateless_normal([2, 3, CHANNELS], seed=[0, 1])
    np.testing.assert_allclose(own(x), reference(x), rtol=1e-4, atol=1e-5)
    assert own.groups == CHANNELS


def test_arguments_weights_and_configurations_are_keras():
    assert inspect.signature(PAIR[0]) == inspect.signature(PAIR[1])
    layers = _pair((2, 3, CHANNELS), gamma_regularizer="l2", epsilon=0.5, name="same")
    own, reference = layers
    assert [w.name for w in own.weights] == [w.name for w in reference.weights]
    assert own.get_config() == reference.get_config()
    for to in PAIR:
        for source in layers:
            assert to.from_config(source.get_config()).get_config() == (
                source.get_config()
            )


def _model(layer_class):
    tf_keras.utils.set_random_seed(1)
    return tf_keras.Sequential(
        [
            tf_keras.layers.Conv2D(4, 2, input_shape=(5, 5, 1)),
            layer_class(GROUPS),
            tf_keras.layers.ReLU(),
            tf_keras.layers.Flatten(),
            tf_keras.layers.Dense(3),
        ]
    )


def test_a_saved_model_is_loaded_with_its_layer(tmp_path):
    model = _model(PAIR[0])
    model.save(tmp_path / "model.keras")
    loaded = tf_keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[1]) is PAIR[0]
    x = np.random.default_rng(0).normal(size=(2, 5, 5, 1)).astype(np.float32)
    np.testing.assert_array_equal(loaded(x), model(x))


def test_a_round_of_fed_avg_equals_that_with_keras_layer():
    rng = np.random.default_rng(0)
    clients = [
        (
            rng.normal(size=(4, 5, 5, 1)).astype(np.float32),
            rng.integers(3, size=4, dtype=np.int32),
        )
        for _ in range(2)
    ]
    (before, own), (_, reference) = (
        round_of_fed_avg(lambda layer=layer: _model(layer), clients) for layer in PAIR
    )
    for start, got, expected in zip(before, own, reference, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(own[2] - before[2]).max() > 1e-4  # gamma


@pytest.mark.parametrize(
    ("axis", "shape", "message"),
    [
        (1, (2, CHANNELS, 3), r"expected axis=-1, found 1 of 3 axes"),
        ([1, 2], (2, CHANNELS, 3), r"expected axis=-1, found \[1, 2\] of 3 axes"),
        (-1, (CHANNELS,), r"expected inputs \[n, ..., channels\], found \(6,\)"),
        (-1, tf.TensorShape(None), r"expected inputs \[n, ..., channels\], found <unk"),
    ],
)
def test_other_axes_and_shapes_are_one_line(axis, shape, message):
    with pytest.raises(ValueError, match=message):
        PAIR[0](GROUPS, axis=axis).build(shape)


def test_masks_are_refused():
    with pytest.raises(ValueError, match="expected mask=None, found a mask"):
        PAIR[0](GROUPS)(tf.ones([2, CHANNELS]), mask=tf.ones([2, CHANNELS]))
