"""A Keras model becomes a classifier of the same outputs, loss and metrics."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tf_keras

import tasks
from tasks.models import keras_classifier
from tff_algos import experiments

layers = tf_keras.layers
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
IDS = np.repeat(["a", "b", "c"], 20)


def _sequential(*last):
    return tf_keras.Sequential(
        [layers.Dense(5, "relu", input_shape=(6,)), layers.Dropout(0.1), *last]
    )


def _of_two_inputs():
    inputs = [tf_keras.Input((6,)), tf_keras.Input((6,))]
    return tf_keras.Model(inputs, layers.Dense(2)(layers.Add()(inputs)))


def _subclassed():
    class Own(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, inputs):
            return self.dense(inputs)

    model = Own()
    model(X)
    return model


def test_its_loss_and_metrics_are_keras_and_the_model_stays_as_it_is():
    keras = _sequential(layers.Dense(2))
    expected = keras(X).numpy()
    model = keras_classifier.build(keras, (6,), 2)
    np.testing.assert_array_equal(keras(X), expected)
    for own, theirs in zip(model.initial_weights[0], keras.get_weights(), strict=True):
        np.testing.assert_array_equal(own, theirs)
    keras.compile(
        loss=tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    loss, accuracy = keras.evaluate(X, Y, verbose=0)
    np.testing.assert_allclose(model.loss(expected, Y), loss, rtol=1e-5)
    output = tff.learning.models.BatchOutput(
        loss=tf.constant(loss), predictions=expected, num_examples=60
    )
    state = model.update_metrics_state(model.initialize_metrics_state(), Y, output)
    found = model.finalize_metrics(state)
    assert float(found["accuracy"]) == pytest.approx(accuracy)
    assert int(found["num_examples"]) == 60


@pytest.mark.parametrize(
    "algorithm",
    [
        "fedavg",
        pytest.param("scaffold", marks=pytest.mark.extended),
        pytest.param("ditto", marks=pytest.mark.extended),
    ],
)
def test_a_run_with_it_gives_a_model_to_load(algorithm, tmp_path):
    keras = _sequential(layers.Dense(2))
    task = tasks.from_arrays(X, Y, IDS, model=keras)
    result = experiments.run(
        algorithm,
        task,
        output_dir=tmp_path,
        total_rounds=3,
        clients_per_round=3,
        client_learning_rate=0.5,
        personalization_epochs=0,
    )
    assert result.metrics["train/loss"][2] < result.metrics["train/loss"][0]
    assert keras(X).shape == (60, 2)  # It can be used as before.
    loaded = experiments.load_model(tmp_path)
    x = X[:4]
    expected = _sequential(layers.Dense(2))
    expected.set_weights(tf.nest.flatten(result.weights.trainable))
    np.testing.assert_allclose(loaded.predict(x), expected(x), rtol=1e-4, atol=1e-5)
    for model in (loaded.keras_model(), result.keras_model()):
        np.testing.assert_allclose(model(x), expected(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("keras", "message"),
    [
        (_sequential(layers.Dense(3)), r"returns \[n, 3\], expected \[n, 2\]"),
        (_sequential(layers.Dense(2, "softmax")), "probabilities, expected logits"),
        (_sequential(layers.Dense(2), layers.Softmax()), "expected logits"),
        (
            _sequential(layers.BatchNormalization(), layers.Dense(2)),
            "batch normalization",
        ),
        (_of_two_inputs(), r"takes several tensors, expected \[n, 6\]"),
        (_subclassed(), "not made of layers, expected a sequential or functional one"),
        (tf_keras.Sequential([layers.Dense(2)]), "no weights yet: call it on a batch"),
        (
            tf_keras.Sequential([layers.Dense(2, input_shape=(7,))]),
            r"takes \[n, 7\], expected \[n, 6\]",
        ),
    ],
)
def test_models_that_do_not_fit_are_refused_in_one_line(keras, message):
    with pytest.raises(tasks.TaskError, match=f"own_data: model=.*{message}") as found:
        tasks.from_arrays(X, Y, IDS, model=keras)
    assert "\n" not in str(found.value)
