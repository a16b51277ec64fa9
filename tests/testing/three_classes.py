"""Classifiers of three classes by functions of their weights."""

import numpy as np
import tensorflow as tf
from tensorflow_federated import learning

from tests.testing import problems


def model_of(weights, predict, x_shape, num_classes=3, dtype=np.float64):
    def loss(output, label, sample_weight=None):
        del sample_weight
        log_likelihood = tf.nn.log_softmax(output)
        picked = tf.one_hot(label, num_classes, dtype=output.dtype) * log_likelihood
        return -tf.reduce_mean(tf.reduce_sum(picked, axis=-1))

    return learning.models.FunctionalModel(
        initial_weights=(tuple(weights), ()),
        predict_on_batch_fn=tf.function(
            lambda all_weights, x, training: predict(all_weights[0], x, training)
        ),
        loss_fn=loss,
        metrics_fns=problems.LOSS_METRICS,
        input_spec=(
            tf.TensorSpec([None, *x_shape], dtype),
            tf.TensorSpec([None], np.int32),
        ),
    )
