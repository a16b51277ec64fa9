"""MOON's projection head: where it is, and what it computes."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tf_keras

import tasks
from tasks.models import cifar, classifier
from tasks.models.blocks import FLATTEN, dense
from tasks.models.normalized import build_lenet, build_tiny_nn, build_vgg11
from tasks.models.projection_head import with_projection_head
from tff_algos.hyperparameters import HyperparameterError
from tff_algos.models.block_model import EVALUATION, chain


def test_two_dense_layers_come_before_the_classifier():
    plain = build_tiny_nn((4, 4, 1), num_classes=3, seed=0)
    model = with_projection_head(plain, seed=1)
    x = np.random.default_rng(0).normal(size=(5, 4, 4, 1)).astype(np.float32)
    before = plain.apply_blocks(plain.initial_weights, x, EVALUATION).features.numpy()
    found = model.apply_blocks(model.initial_weights, x, EVALUATION)
    *_, kernel1, bias1, kernel2, bias2, kernel3, bias3 = model.initial_weights[0]
    assert kernel1.shape == kernel2.shape == (100, 100)
    features = np.maximum(before @ kernel1 + bias1, 0) @ kernel2 + bias2
    np.testing.assert_allclose(found.features, features, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        found.output, features @ kernel3 + bias3, rtol=1e-4, atol=1e-5
    )
    # All other weights are the plain model's.
    np.testing.assert_array_equal(kernel3, plain.initial_weights[0][-2])
    assert model.num_blocks == plain.num_blocks + 1


@pytest.mark.parametrize(
    ("build", "size"),
    [
        (lambda: build_tiny_nn((4, 4, 1), 10, seed=0), 100),
        (lambda: build_lenet(10, seed=0), 128),
        (lambda: build_vgg11(10, seed=0), 128),
        (lambda: cifar.build_cifar_model("cnn", 10, seed=0), 192),
    ],
)
def test_features_are_the_output_of_the_penultimate_layer(build, size):
    model = build()
    apart = model.with_classifier_apart()
    kernel, bias = apart.initial_weights[0][-2:]
    assert kernel.shape == (size, 10)
    shape = [2, *model.input_spec[0].shape[1:]]
    x = tf.random.stateless_normal(shape, [0, 0])
    found = apart.apply_blocks(apart.initial_weights, x, EVALUATION)
    output = model.predict_on_batch(model.initial_weights, x, training=False)
    np.testing.assert_array_equal(found.output, output)
    np.testing.assert_allclose(
        found.output, found.features @ kernel + bias, rtol=1e-4, atol=1e-5
    )
    with_head = with_projection_head(model, seed=0)
    assert with_head.initial_weights[0][-4].shape == (size, size)


def test_its_weights_are_no_copy_of_the_models():
    flat = dense(np.random.default_rng(0), 16, 16)
    last = dense(np.random.default_rng(1), 16, 3)
    plain = classifier.build([chain(FLATTEN, flat), last], (4, 4, 1))
    kernel = with_projection_head(plain, seed=0).initial_weights[0][2]
    first = plain.initial_weights[0][0]
    assert kernel.shape == first.shape
    assert abs(np.corrcoef(kernel.ravel(), first.ravel())[0, 1]) < 0.3


def test_dropout_keeps_working():
    model = with_projection_head(cifar.build_cifar_model("cnn", 10, 0), seed=0)
    x = tf.random.stateless_normal([2, 32, 32, 3], [0, 0])
    training, evaluation = (
        model.predict_on_batch(model.initial_weights, x, training=t)
        for t in (True, False)
    )
    assert training.shape == (2, 10) and not np.allclose(training, evaluation)


def test_features_must_be_vectors():
    # The features of a model of one block are its inputs.
    rng = np.random.default_rng(0)
    model = classifier.build([chain(FLATTEN, dense(rng, 16, 2))], (4, 4, 1))
    with pytest.raises(HyperparameterError, match="projection_head=True.*not vectors"):
        with_projection_head(model, seed=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_chain_of_keras_layers_gets_one_of_its_dtype(dtype):
    layers = [
        tf_keras.layers.Dense(5, dtype=dtype),
        tf_keras.layers.Dense(2, dtype=dtype),
    ]
    plain = tf_keras.Sequential([tf_keras.layers.Input([3], dtype=dtype), *layers])
    task = tasks.from_arrays(
        np.ones([8, 3]), np.arange(8) % 2, np.arange(8) % 2, model=plain
    )
    model = with_projection_head(task.model, seed=0)
    *_, kernel, bias, _, _ = model.initial_weights[0]
    assert (kernel.shape, bias.shape) == ((5, 5), (5,))
    assert kernel.dtype == bias.dtype == dtype

    @tff.tensorflow.computation
    def predict():
        return model.predict_on_batch(model.initial_weights, tf.ones([4, 3], dtype))

    assert predict().shape == (4, 2)
