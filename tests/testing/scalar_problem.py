"""A model of one weight, whose loss is a parabola."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


def model(initial):
    """F(w) = mean of (w - target)^2 * curvature / 2 over examples."""

    @tf.function
    def predict(weights, x, training):
        del training
        return x * weights[0][0]

    def loss(output, label, sample_weight=None):
        del sample_weight
        return tf.reduce_mean(tf.square(output - label)) / 2

    return tff.learning.models.FunctionalModel(
        initial_weights=((np.array(initial),), ()),
        predict_on_batch_fn=predict,
        loss_fn=loss,
        input_spec=(
            tf.TensorSpec([None], np.float64),
            tf.TensorSpec([None], np.float64),
        ),
    )


def client(x, y, steps):
    dataset = tf.data.Dataset.from_tensors((np.array([x]), np.array([y])))
    return dataset.repeat(steps)


def float32_model(initial):
    base = model(initial)
    spec = tf.TensorSpec([None], np.float32)
    return tff.learning.models.FunctionalModel(
        initial_weights=((np.array(initial, np.float32),), ()),
        predict_on_batch_fn=base._predict_on_batch_fn,
        loss_fn=base.loss,
        input_spec=(spec, spec),
    )


def float32_client(x, y, steps):
    pair = (np.array([x], np.float32), np.array([y], np.float32))
    return tf.data.Dataset.from_tensors(pair).repeat(steps)
