"""Gradients back through training: those of nested tapes and finite differences."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_federated import learning

from tests.testing import problems
from tests.testing.three_classes import model_of
from tff_algos.client_works import passes, unrolled_training
from tff_algos.client_works.unrolled_training import Steps
from tff_algos.models import local_model
from tff_algos.models.local_model import Weights

SGD = learning.optimizers.build_sgdm
RATE = problems.f32(0.05)


def _multilayer_perceptron():
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=s) * 0.5 for s in ((4, 6), (6,), (6, 3), (3,))]

    def predict(w, x, training):
        del training
        return tf.nn.softplus(x @ w[0] + w[1]) @ w[2] + w[3]

    return model_of(weights, predict, [4])


def _convolutional_network():
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=s) * 0.4 for s in ((3, 3, 1, 4), (4,), (36, 3), (3,))]

    def predict(w, x, training):
        del training
        hidden = tf.nn.relu(tf.nn.conv2d(x, w[0], 1, "SAME") + w[1])
        hidden = tf.nn.max_pool2d(hidden, 2, 2, "SAME")
        return tf.reshape(hidden, [-1, 36]) @ w[2] + w[3]

    return model_of(weights, predict, [6, 6, 1])


def _dropout_network():
    rng = np.random.default_rng(2)
    weights = [rng.normal(size=s) * 0.5 for s in ((4, 8), (8,), (8, 3), (3,))]

    def predict(w, x, training):
        hidden = tf.tanh(x @ w[0] + w[1])
        if training:
            # A function of the batch and the weights, hence the same on the way back.
            bits = tf.bitcast(tf.stop_gradient(w[3]), tf.int32)
            seed = tf.stack([tf.reduce_sum(bits), tf.shape(x)[0]])
            hidden = tf.nn.experimental.stateless_dropout(hidden, 0.5, seed)
        return hidden @ w[2] + w[3]

    return model_of(weights, predict, [4])


def _recurrent_network():
    rng = np.random.default_rng(3)
    weights = [rng.normal(size=s) * 0.5 for s in ((2, 5), (5, 5), (5, 3))]

    def predict(w, x, training):
        del training

        def step(time, state):
            return time + 1, tf.tanh(x[:, time] @ w[0] + state @ w[1])

        start = tf.zeros([tf.shape(x)[0], 5], x.dtype)
        _, state = tf.while_loop(
            lambda time, _: time < 7,
            step,
            (0, start),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, 5])),
            maximum_iterations=7,
        )
        return state @ w[2]

    return model_of(weights, predict, [7, 2])


def _embedding_network():
    rng = np.random.default_rng(4)
    weights = [rng.normal(size=s) * 0.5 for s in ((6, 5), (5, 3))]

    def predict(w, x, training):
        del training
        rows = tf.gather(w[0], tf.cast(tf.abs(x), tf.int32))
        return tf.tanh(tf.reduce_sum(rows, axis=1)) @ w[1]

    return model_of(weights, predict, [4])


MODELS = {
    "multilayer perceptron": _multilayer_perceptron,
    "convolutional network": _convolutional_network,
    "dropout": _dropout_network,
    "recurrent network": _recurrent_network,
    "embedding": _embedding_network,
}


def _examples(model, count, seed=0):
    x_spec, _ = model.input_spec
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, *x_spec.shape[1:]))
    return x, rng.integers(0, 3, count).astype(np.int32)


def _batches(model, count=7, batch_size=3):
    slices = tf.data.Dataset.from_tensor_slices(_examples(model, count))
    return slices.batch(batch_size)


def _start(model):
    return tuple(tf.constant(w) for w in model.initial_weights[0])


def _adjoint(model, num_passes, max_trajectory_bytes):
    """The gradient of the mean loss after `num_passes` epochs, by going back."""
    view, dataset = local_model.create(model), _batches(model)
    optimizer = SGD(RATE)

    @tf.function
    def gradient(start):
        support = passes.read(dataset, num_passes)
        specs = [tf.TensorSpec(w.shape, w.dtype) for w in start]
        steps = Steps(view, optimizer, optimizer.initialize(specs), support, ())

        def at_the_end(trainable, metrics):
            return unrolled_training.gradient_of_batches(
                view,
                Weights(trainable, ()),
                metrics,
                support,
                tf.constant(0),
                support.batches_per_pass,
            )

        return unrolled_training.gradient_through_training(
            steps,
            support.num_batches,
            start,
            view.initial_metrics(),
            at_the_end,
            max_trajectory_bytes,
        ).gradient

    return gradient(_start(model))


def _loss_after_training(model, start, num_passes):
    """Unrolled, by gradients of gradients."""
    batches = list(_batches(model))

    def loss(weights, x, y):
        output = model.predict_on_batch((weights, ()), x, training=True)
        return model.loss(output=output, label=y)

    weights = start
    for x, y in batches * num_passes:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            value = loss(weights, x, y)
        gradients = map(tf.convert_to_tensor, tape.gradient(value, weights))
        weights = tuple(w - RATE * g for w, g in zip(weights, gradients, strict=True))
    losses = [loss(weights, x, y) * float(len(y)) for x, y in batches]
    return tf.add_n(losses) / sum(float(len(y)) for _, y in batches)


@pytest.mark.parametrize("memory", ["whole trajectory", "checkpoints"])
@pytest.mark.parametrize("name", MODELS)
def test_the_way_back_gives_what_nested_tapes_give(name, memory):
    model = MODELS[name]()
    limit = 1 << 30 if memory == "whole trajectory" else 0
    found = _adjoint(model, 3, limit)
    start = _start(model)
    with tf.GradientTape() as tape:
        tape.watch(start)
        value = _loss_after_training(model, start, 3)
    for ours, expected in zip(found, tape.gradient(value, start), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-10)


def test_the_gradient_is_that_of_finite_differences():
    model = _multilayer_perceptron()
    found, start = _adjoint(model, 2, 1 << 30), _start(model)
    rng = np.random.default_rng(5)
    for _ in range(5):
        direction = [rng.normal(size=w.shape) for w in start]
        h = 1e-6
        ends = [
            _loss_after_training(
                model,
                tuple(w + sign * h * d for w, d in zip(start, direction, strict=True)),
                2,
            )
            for sign in (1, -1)
        ]
        slope = sum(np.sum(g * d) for g, d in zip(found, direction, strict=True))
        assert slope == pytest.approx(float(ends[0] - ends[1]) / (2 * h), abs=1e-8)
