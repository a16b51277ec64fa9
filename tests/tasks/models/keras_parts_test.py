"""Chains of Keras layers are divided at layers with weights; other models are not."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tasks.models import keras_parts

layers = tf_keras.layers
X = np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)


def _image_classifier():
    return tf_keras.Sequential(
        [
            layers.Reshape((4, 4, 1), input_shape=(16,)),
            layers.Conv2D(3, 3, activation="relu"),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(5, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(2),
        ]
    )


def _functional():
    inputs = tf_keras.Input((16,))
    hidden = layers.ReLU()(layers.Dense(4)(inputs))
    return tf_keras.Model(inputs, layers.Dense(2)(hidden))


def _pretrained():
    frozen = tf_keras.Sequential(
        [layers.Dense(7, input_shape=(16,)), layers.BatchNormalization()]
    )
    frozen.trainable = False
    return tf_keras.Sequential([frozen, layers.Dense(2)])


def _built_by_a_call():
    model = tf_keras.Sequential([layers.Dense(4), layers.Dense(2)])
    model(X)
    return model


@pytest.mark.parametrize(
    ("build", "kinds"),
    [
        (
            _image_classifier,
            [
                ["Reshape", "Conv2D", "MaxPooling2D", "Flatten"],
                ["Dense", "Dropout"],
                ["Dense"],
            ],
        ),
        (_functional, [["Dense", "ReLU"], ["Dense"]]),
        (_pretrained, [["Sequential"], ["Dense"]]),
        (_built_by_a_call, [["Dense"], ["Dense"]]),
    ],
)
def test_parts_in_turn_are_the_model(build, kinds):
    model = build()
    before = [layer.inbound_nodes[:] for layer in model.layers]
    parts = keras_parts.divide(model)
    assert [[type(each).__name__ for each in part.layers] for part in parts] == kinds
    outputs = X
    for part in parts:
        outputs = part(outputs)
    np.testing.assert_array_equal(outputs, model(X))
    for name in ("trainable_variables", "non_trainable_variables"):
        of_parts = [each for part in parts for each in getattr(part, name)]
        for found, expected in zip(of_parts, getattr(model, name), strict=True):
            np.testing.assert_array_equal(found, expected)
    # The model and its layers stay as they were.
    assert [layer.inbound_nodes for layer in model.layers] == before


def test_a_part_does_not_end_where_a_mask_passes():
    model = tf_keras.Sequential(
        [
            layers.Embedding(9, 4, mask_zero=True, input_length=5),
            layers.LSTM(3),
            layers.Dense(2),
        ]
    )
    words = np.array([[3, 1, 0, 0, 0], [2, 5, 4, 0, 0]])
    text, logits = keras_parts.divide(model)
    assert [type(each).__name__ for each in text.layers] == ["Embedding", "LSTM"]
    np.testing.assert_array_equal(logits(text(words)), model(words))


def _with_a_residual():
    inputs = tf_keras.Input((16,))
    hidden = layers.Dense(4)(inputs)
    hidden = layers.Add()([hidden, layers.Dense(4)(hidden)])
    return tf_keras.Model(inputs, layers.Dense(2)(hidden))


def _with_a_layer_twice():
    dense = layers.Dense(16, input_shape=(16,))
    return tf_keras.Sequential([dense, layers.ReLU(), dense])


class _Doubled(tf_keras.Sequential):
    def call(self, inputs, training=None, mask=None):
        return 2 * super().call(inputs, training, mask)


@pytest.mark.parametrize(
    "build",
    [
        _with_a_residual,
        _with_a_layer_twice,
        lambda: _Doubled([layers.Dense(2, input_shape=(16,))]),
    ],
)
def test_other_models_are_not_divided(build):
    assert keras_parts.divide(build()) is None


def test_dropout_is_cut_out_of_a_part():
    model = tf_keras.Sequential(
        [
            layers.Dropout(0.1, input_shape=(16,)),
            layers.Dense(4),
            layers.ReLU(),
            layers.Dropout(0.5),
            layers.Dropout(0.2),
            layers.Reshape((2, 2)),
            layers.Dropout(0.3, noise_shape=(None, 1, 2)),
            layers.Dropout(1.0),
        ]
    )
    (part,) = keras_parts.divide(model)
    first, dense, half, fifth, rest = keras_parts.at_dropout(part)
    assert [each.rate for each in (first, half, fifth)] == [0.1, 0.5, 0.2]
    assert [type(each).__name__ for each in dense.layers] == ["Dense", "ReLU"]
    # Those that are not elementwise stay.
    assert [type(each).__name__ for each in rest.layers] == [
        "Reshape",
        "Dropout",
        "Dropout",
    ]
    np.testing.assert_array_equal(rest(dense(X)), model(X))


def test_dropout_of_what_is_masked_stays_where_it_is():
    model = tf_keras.Sequential(
        [
            layers.Embedding(9, 4, mask_zero=True, input_length=5),
            layers.Dropout(0.5),
            layers.LSTM(3),
            layers.Dropout(0.5),
            layers.Dense(2),
        ]
    )
    text, _ = keras_parts.divide(model)
    masked, dropout = keras_parts.at_dropout(text)
    assert [type(each).__name__ for each in masked.layers] == [
        "Embedding",
        "Dropout",
        "LSTM",
    ]
    assert type(dropout) is layers.Dropout


def test_layers_that_are_called_with_training_keep_it():
    inputs = tf_keras.Input((16,))
    base = tf_keras.Sequential(
        [layers.Dense(7, input_shape=(16,)), layers.BatchNormalization()]
    )
    base.trainable = False
    hidden = layers.Dropout(0.5)(base(inputs, training=False), training=True)
    model = tf_keras.Model(inputs, layers.Dense(2)(layers.Dropout(0.2)(hidden)))
    first, last = keras_parts.divide(model)
    always, dropout = keras_parts.at_dropout(first)
    assert type(dropout) is layers.Dropout and dropout.rate == 0.2
    found = last(always(X, training=True))
    outputs = [last(always(X, training=False)) for _ in range(2)]
    assert found.shape == (3, 2) and np.any(outputs[0] != outputs[1])
    np.testing.assert_array_equal(always.layers[1](X), base(X, training=False))


def _with_a_second_argument(by_name):
    inputs = tf_keras.Input((16,))
    hidden = layers.Dense(4)(inputs)
    hidden = (
        tf.reshape(hidden, shape=[-1, 2, 2]) if by_name else tf.reshape(hidden, [-1, 4])
    )
    return tf_keras.Model(inputs, layers.Dense(2)(hidden))


@pytest.mark.parametrize("by_name", [False, True])
def test_layers_that_take_more_than_an_input_make_no_chain(by_name):
    assert keras_parts.divide(_with_a_second_argument(by_name)) is None


def test_a_positional_training_makes_no_chain():
    inputs = tf_keras.Input((16,))
    dropped = layers.Dropout(0.5)(layers.Dense(4)(inputs), True)
    assert keras_parts.divide(tf_keras.Model(inputs, layers.Dense(2)(dropped))) is None
