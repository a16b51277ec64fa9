"""The workloads' models as functions of TensorFlow tensors, in Keras' layout."""

from collections.abc import Callable, Sequence

from tasks.models import layers, metrics, text

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.engines import workloads
from tff_algos.layers import lstm

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


def logits_fn(workload: workloads.Workload) -> Logits:
    """Returns the function from (weights, x) to logits `[n, ..., classes]`."""
    return {"cnn": _cnn, "dense": _dense, "lstm": _lstm}[workload.model]


def mean_loss(logits: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns the mean cross entropy over the examples (and positions)."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


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
        input_spec=(
            tf.TensorSpec([None, *inputs.x.shape[2:]], tf.float32),
            tf.TensorSpec([None], tf.int32),
        ),
    )


def keras_lstm() -> tf.keras.Model:
    """Returns the LSTM model written with Keras, with different initial weights."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(
                workloads.VOCAB_SIZE,
                workloads.EMBEDDING_SIZE,
                input_length=workloads.SEQUENCE_LENGTH,
            ),
            *(
                tf.keras.layers.LSTM(workloads.UNITS, return_sequences=True)
                for _ in range(workloads.NUM_LSTM_LAYERS)
            ),
            tf.keras.layers.Dense(workloads.VOCAB_SIZE),
        ]
    )
