"""The workloads' models as functions of TensorFlow tensors, in Keras' layout."""

from collections.abc import Callable, Sequence

from tasks.models import layers, metrics, text

from tff_algos import compat  # noqa: F401  # isort: skip

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.engines import workloads
from tff_algos.layers import group_norm, lstm

Logits = Callable[[Sequence[tf.Tensor], tf.Tensor], tf.Tensor]


def _cnn(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    filters_1, bias_1, filters_2, bias_2, *head = weights
    x = tf.nn.relu(layers.conv2d(x, filters_1, bias_1, "VALID"))
    x = tf.nn.relu(layers.conv2d(x, filters_2, bias_2, "VALID"))
    return _dense(head, layers.flatten(layers.max_pool2d(x)))


def _dense(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    *hidden, kernel, bias = weights
    if hidden:
        x = tf.nn.relu(layers.dense(x, *hidden))
    return layers.dense(x, kernel, bias)


def _lstm(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    embedding, *layers_, kernel, bias = weights
    # A product with one-hot rows, as in the tasks: its gradient is dense.
    hidden = tf.matmul(tf.one_hot(tf.transpose(x), workloads.VOCAB_SIZE), embedding)
    for start in range(0, len(layers_), 3):
        hidden = lstm.lstm(hidden, *layers_[start : start + 3])
    return tf.matmul(tf.transpose(hidden, [1, 0, 2]), kernel) + bias


def _normalized_conv(
    x: tf.Tensor, weights: Sequence[tf.Tensor], strides: int
) -> tf.Tensor:
    filters, scale, bias = weights
    x = layers.conv2d_3x3(x, filters, strides)
    return group_norm.group_norm(
        x, scale, bias, workloads.NUM_GROUPS, workloads.NORM_EPSILON
    )


def shortcut(x: tf.Tensor) -> tf.Tensor:
    """Returns every second pixel and twice the channels, the new ones zero."""
    return tf.pad(x[:, ::2, ::2], [[0, 0], [0, 0], [0, 0], [0, x.shape[-1]]])


def _resnet(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    *convolutions, kernel, bias = weights
    x = tf.nn.relu(_normalized_conv(x, convolutions[:3], 1))
    for start in range(3, len(convolutions), 6):
        first, second = convolutions[start : start + 3], convolutions[start + 3 :][:3]
        strides = first[0].shape[-1] // first[0].shape[-2]
        body = tf.nn.relu(_normalized_conv(x, first, strides))
        body = _normalized_conv(body, second, 1)
        x = tf.nn.relu(body + (x if strides == 1 else shortcut(x)))
    return layers.dense(tf.reduce_mean(x, [1, 2]), kernel, bias)


def _layer_norm(x: tf.Tensor, scale: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    x -= tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(x), -1, keepdims=True)
    return x * tf.math.rsqrt(variance + workloads.NORM_EPSILON) * scale + bias


def _attention(x: tf.Tensor, *weights: tf.Tensor) -> tf.Tensor:
    """Returns causal attention of all heads; weights as `MultiHeadAttention`'s."""
    *projections, kernel, bias = weights
    heads = workloads.NUM_HEADS, workloads.HEAD_SIZE
    query, key, value = (
        tf.transpose(
            tf.reshape(_linear(x, *projections[n : n + 2]), [-1, x.shape[1], *heads]),
            [0, 2, 1, 3],
        )
        for n in (0, 2, 4)
    )
    scores = tf.matmul(query, key, transpose_b=True) / workloads.HEAD_SIZE**0.5
    causal = np.tri(x.shape[1], dtype=bool)
    scores = tf.where(causal, scores, np.float32(-1e9))
    mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), [0, 2, 1, 3])
    mixed = tf.reshape(mixed, [-1, x.shape[1], workloads.WIDTH])
    return _linear(mixed, tf.reshape(kernel, [workloads.WIDTH] * 2), bias)


def _linear(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Returns a dense layer at every position, as one product of matrices."""
    kernel = tf.reshape(kernel, [x.shape[-1], -1])
    outputs = layers.dense(
        tf.reshape(x, [-1, x.shape[-1]]), kernel, tf.reshape(bias, [-1])
    )
    return tf.reshape(outputs, [-1, x.shape[1], kernel.shape[-1]])


def _transformer(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    characters, positions, *layers_, scale, shift, kernel, bias = weights
    # As in `_lstm`: the gradient of the product is dense.
    x = tf.reshape(tf.one_hot(x, workloads.VOCAB_SIZE), [-1, workloads.VOCAB_SIZE])
    x = tf.reshape(tf.matmul(x, characters), [-1, *positions.shape]) + positions
    for start in range(0, len(layers_), 16):
        own = layers_[start : start + 16]
        x += _attention(_layer_norm(x, *own[:2]), *own[2:10])
        hidden = tf.nn.relu(_linear(_layer_norm(x, *own[10:12]), *own[12:14]))
        x += _linear(hidden, *own[14:])
    return _linear(_layer_norm(x, scale, shift), kernel, bias)


def logits_fn(workload: workloads.Workload) -> Logits:
    """Returns the function from (weights, x) to logits `[n, ..., classes]`."""
    return {
        "cnn": _cnn,
        "dense": _dense,
        "lstm": _lstm,
        "resnet": _resnet,
        "transformer": _transformer,
    }[workload.model]


def mean_loss(logits: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns the mean cross entropy over the examples (and positions)."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def input_spec(inputs: workloads.Inputs) -> tuple[tf.TensorSpec, tf.TensorSpec]:
    """Returns the types of batches of any size."""
    return tuple(
        tf.TensorSpec([None, *values.shape[2:]], values.dtype)
        for values in (inputs.x, inputs.y)
    )


def functional_model(inputs: workloads.Inputs) -> tff.learning.models.FunctionalModel:
    """Returns the model with the inputs' initial weights, for TFF.

    Loss and metrics are those of this project's tasks; the LSTM model is the
    tasks' own.
    """
    if inputs.workload.model == "lstm":
        own = text.build_lstm_model(workloads.VOCAB_SIZE, workloads.SEQUENCE_LENGTH)
        return tff.learning.models.FunctionalModel(
            initial_weights=(inputs.weights, ()),
            predict_on_batch_fn=own.predict_on_batch,
            loss_fn=own.loss,
            metrics_fns=(
                own.initialize_metrics_state,
                own.update_metrics_state,
                own.finalize_metrics,
            ),
            input_spec=own.input_spec,
        )
    logits = logits_fn(inputs.workload)

    @tf.function
    def predict_on_batch(model_weights, x, training):
        del training  # The models have no dropout.
        return logits(model_weights[0], x)

    classification = metrics.Classification()
    return tff.learning.models.FunctionalModel(
        initial_weights=(inputs.weights, ()),
        predict_on_batch_fn=predict_on_batch,
        loss_fn=classification.loss,
        metrics_fns=classification.metrics_fns(),
        input_spec=input_spec(inputs),
    )
