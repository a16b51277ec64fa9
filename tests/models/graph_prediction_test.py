"""A functional model that TFF made of a Keras model predicts outside of TFF, too."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tf_keras

from tff_algos.models import graph_prediction
from tff_algos.models.keras_model import build_keras_model

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)


def _mlp():
    layers = tf_keras.layers
    return tf_keras.Sequential(
        [layers.Dense(5, "relu", input_shape=(6,)), layers.Dropout(0.5)]
        + [layers.Dense(3)]
    )


def _lstm():
    layers = tf_keras.layers
    return tf_keras.Sequential(
        [layers.Reshape((3, 2), input_shape=(6,)), layers.LSTM(4), layers.Dense(3)]
    )


def _functional(build):
    return tff.learning.models.functional_model_from_keras(
        build,
        tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        (tf.TensorSpec([None, 6], tf.float32), tf.TensorSpec([None], tf.int32)),
    )


def _keras(build, weights):
    keras = build()
    keras.set_weights(tf.nest.flatten(weights))
    return keras


@pytest.mark.parametrize("build", [_mlp, _lstm])
def test_it_predicts_eagerly_and_in_functions_with_the_models_gradients(build):
    model = _functional(build)
    predict = graph_prediction.anywhere(model)
    weights = tf.nest.map_structure(tf.constant, model.initial_weights)

    def gradients(weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits = predict(weights, X, False)
            loss = tf.reduce_sum(logits**2)
        return logits, tape.gradient(loss, weights[0])

    keras = _keras(build, model.initial_weights)
    with tf.GradientTape() as tape:
        logits = keras(X)
        loss = tf.reduce_sum(logits**2)
    expected = (logits.numpy(), tape.gradient(loss, keras.trainable_variables))
    for found in (gradients(weights), tf.function(gradients)(weights)):
        for own, theirs in zip(
            tf.nest.flatten(found), tf.nest.flatten(expected), strict=True
        ):
            np.testing.assert_allclose(own, theirs, rtol=1e-5, atol=1e-6)


def test_dropout_is_drawn_anew_in_training_alone():
    model = _functional(_mlp)
    predict = graph_prediction.anywhere(model)
    first, second = (predict(model.initial_weights, X, True) for _ in range(2))
    assert np.abs(first - second).max() > 0
    first, second = (predict(model.initial_weights, X, False) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_it_becomes_a_keras_model_that_trains():
    model = _functional(_lstm)
    weights = tff.learning.models.ModelWeights(*model.initial_weights)
    ours, theirs = build_keras_model(model, weights), _keras(_lstm, weights)
    labels = np.array([0, 1, 2, 0])
    for each in (ours, theirs):
        loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        each.compile(tf_keras.optimizers.SGD(0.5), loss)
        each.fit(X, labels, batch_size=4, epochs=2, verbose=0)
    for own, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-6)
