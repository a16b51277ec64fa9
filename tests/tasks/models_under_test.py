"""What the tests of models share: small inputs, weights and gradients."""

import numpy as np
import tensorflow as tf

from tasks.models import text


def num_weights(model):
    return sum(weight.size for weight in model.initial_weights[0])


def constants(model):
    return tuple(tf.constant(weight) for weight in model.initial_weights[0])


def images(seed, num_examples=6, num_classes=10):
    rng = np.random.default_rng(seed)
    x = rng.random((num_examples, 28, 28, 1), np.float32)
    return tf.constant(x), tf.constant(
        rng.integers(0, num_classes, num_examples), tf.int32
    )


def loss_and_gradients(model, weights, x, y, training=True):
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = model.loss(
            model.predict_on_batch((weights, ()), x, training=training), y
        )
    return loss, tape.gradient(loss, weights)


def characters(seed, num_examples=2, length=80):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, 90, (num_examples, length + 1)).astype(np.int32)
    tokens[0, length // 2 :] = text.PADDING_ID
    return tf.constant(tokens[:, :-1]), tf.constant(tokens[:, 1:])
