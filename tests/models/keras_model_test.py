"""A Keras model computes what the functional model does, with the weights given."""

import numpy as np
import pytest
import tensorflow_federated as tff
import tf_keras

from tests.testing import problems
from tff_algos.models.keras_model import build_keras_model

MODEL = problems.linear_model(np.float32)
X = np.arange(10, dtype=np.float32).reshape(2, 5)
WEIGHTS = tff.learning.models.ModelWeights(
    (np.array([1, 0, 0, 0, 2], np.float32), np.float32(0.5)), ()
)


def test_predictions_are_those_of_the_weights():
    keras = build_keras_model(MODEL, WEIGHTS)
    np.testing.assert_array_equal(keras.predict(X, verbose=0), [8.5, 23.5])
    for found, given in zip(keras.get_weights(), WEIGHTS.trainable, strict=True):
        np.testing.assert_array_equal(found, given)


@pytest.mark.parametrize("dtype", [np.int64, np.float64, bool])
def test_features_of_any_numbers_are_cast(dtype):
    keras = build_keras_model(MODEL, WEIGHTS)
    x = np.arange(10).reshape(2, 5).astype(dtype)
    found = keras.predict(x, verbose=0)
    np.testing.assert_allclose(found, keras(x.astype(np.float32)), rtol=1e-6)


def test_bytes_of_images_are_refused():
    keras = build_keras_model(MODEL, WEIGHTS)
    with pytest.raises(ValueError, match="takes float32, found uint8: tasks divide"):
        keras.predict(np.zeros((2, 5), np.uint8), verbose=0)


def test_training_moves_the_trainable_weights():
    start = tff.learning.models.ModelWeights(*MODEL.initial_weights)
    keras = build_keras_model(MODEL, start)
    keras.compile("sgd", "mse")
    targets = keras.predict(X, verbose=0) - 1
    keras.fit(X, targets, epochs=1, verbose=0)
    # The bias steps by the rate of 0.01 against a mean gradient of 2.
    moved = keras.get_weights()[1] - MODEL.initial_weights[0][1]
    np.testing.assert_allclose(moved, -0.02, rtol=1e-4)


def test_it_is_saved_as_a_saved_model_and_as_weights_alone(tmp_path):
    start = tff.learning.models.ModelWeights(*MODEL.initial_weights)
    keras = build_keras_model(MODEL, start)
    keras.set_weights([np.array([1, 0, 0, 0, 2], np.float32), np.float32(0.5)])
    keras.save(tmp_path / "model")
    loaded = tf_keras.models.load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), [8.5, 23.5])
    keras.save_weights(tmp_path / "model.weights.h5")
    other = build_keras_model(MODEL, start)
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(other.predict(X, verbose=0), [8.5, 23.5])


def test_a_format_that_describes_layers_is_refused(tmp_path):
    start = tff.learning.models.ModelWeights(*MODEL.initial_weights)
    with pytest.raises(NotImplementedError, match="not layers .* as a SavedModel"):
        build_keras_model(MODEL, start).save(tmp_path / "model.keras")
