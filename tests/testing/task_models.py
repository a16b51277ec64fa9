"""What the tests of models share: small inputs, weights and gradients."""

import numpy as np
import tensorflow as tf

from tasks.models import text


def num_weights(model):
    return sum(weight.size for weight in model.initial_weights[0])


def constants(model):
    return tuple(tf.constant(weight) for weight in model.initial_weights[0])


def moved_weights(model, seed):
    """Returns trainable and non-trainable weights, no vector of them constant."""
    rng = np.random.default_rng(seed)

    def moved(weight):
        limit = 0.1 if weight.ndim == 1 else 0.01
        noise = rng.uniform(-limit, limit, weight.shape).astype(np.float32)
        return tf.constant(weight + noise)

    return tf.nest.map_structure(moved, model.initial_weights)


def images(seed, num_examples=6, num_classes=10):
    rng = np.random.default_rng(seed)
    x = rng.random((num_examples, 28, 28, 1), np.float32)
    return tf.constant(x), tf.constant(
        rng.integers(0, num_classes, num_examples), tf.int32
    )


def examples(model, seed, num_examples=4):
    """Returns a batch of normal numbers, or of tokens, that the model takes."""
    rng = np.random.default_rng(seed)
    x_spec, y_spec = model.input_spec
    x_shape, y_shape = ((num_examples, *spec.shape[1:]) for spec in model.input_spec)
    num_labels = model.initial_weights[0][-1].size
    if x_spec.dtype.is_integer:
        x = rng.integers(0, num_labels, x_shape)
    else:
        x = rng.standard_normal(x_shape)
    y = rng.integers(0, num_labels, y_shape)
    return tf.constant(x, x_spec.dtype), tf.constant(y, y_spec.dtype)


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
