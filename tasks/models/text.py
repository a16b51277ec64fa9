"""The character model of TFF's Shakespeare baseline.

Two LSTM layers of 256 units: McMahan et al., "Communication-efficient learning
of deep networks from decentralized data", AISTATS 2017
(https://arxiv.org/abs/1602.05629). The same function as
`tff.simulation.baselines.shakespeare`'s model wherever the target is no padding.
"""

import numpy as np

from tasks.models import initializers, layers, lstm, metrics

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow as tf
import tensorflow_federated as tff

PADDING_ID = 0
EMBEDDING_SIZE = 8
UNITS = 256
NUM_LAYERS = 2


def build_lstm_model(
    vocab_size: int = 90,
    sequence_length: int = 80,
    seed: int = 0,
    gradient: lstm.Gradient = "fused",
) -> tff.learning.models.FunctionalModel:
    """Returns a model that predicts the next character at every position.

    Args:
      vocab_size: Number of characters, id 0 (padding) among them.
      sequence_length: Characters per example.
      seed: Decides the initial weights: Keras' defaults (uniform embedding,
        orthogonal recurrent kernels, forget bias one, Glorot uniform output)
        but for He-normal LSTM kernels, as the baseline has them.
      gradient: How the LSTM layers are differentiated, see `lstm.lstm`.

    Returns:
      A model with `x` int32 `[None, sequence_length]`, `y` the same, logits
      float32 `[None, sequence_length, vocab_size]`, loss and accuracy over the
      targets other than padding, the metrics of `metrics.Classification`, and
      trainable weights embedding, (kernel, recurrent kernel, bias) of each
      layer, kernel, bias: 820,522 for 90 characters.

    Raises:
      ValueError: If `vocab_size` or `sequence_length` is not positive.
    """
    for name, value in (
        ("vocab_size", vocab_size),
        ("sequence_length", sequence_length),
    ):
        if value < 1:
            raise ValueError(f"Expected a positive {name}, found {value}.")

    @tf.function
    def predict_on_batch(model_weights, x, training):
        del training  # The same in both.
        (embedding, *lstm_weights, kernel, bias), _ = model_weights
        # A product with one-hot rows instead of a lookup: its gradient is dense
        # and always sums in the same order, and it costs nothing at this size.
        one_hot = tf.one_hot(tf.reshape(tf.transpose(x), [-1]), vocab_size)
        hidden = tf.reshape(
            tf.matmul(one_hot, embedding), [sequence_length, -1, EMBEDDING_SIZE]
        )
        for layer in range(NUM_LAYERS):
            layer_weights = lstm_weights[3 * layer : 3 * layer + 3]
            hidden = lstm.lstm(hidden, *layer_weights, gradient=gradient)
        hidden = tf.reshape(tf.transpose(hidden, [1, 0, 2]), [-1, UNITS])
        logits = layers.dense(hidden, kernel, bias)
        return tf.reshape(logits, [-1, sequence_length, vocab_size])

    classification = metrics.Classification(padding_id=PADDING_ID)
    spec = tf.TensorSpec([None, sequence_length], tf.int32)
    return tff.learning.models.FunctionalModel(
        initial_weights=(_initial_weights(vocab_size, seed), ()),
        predict_on_batch_fn=predict_on_batch,
        loss_fn=classification.loss,
        metrics_fns=classification.metrics_fns(),
        input_spec=(spec, spec),
    )


def _initial_weights(vocab_size: int, seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    weights = [initializers.uniform(rng, vocab_size, EMBEDDING_SIZE, limit=0.05)]
    for layer in range(NUM_LAYERS):
        input_size = EMBEDDING_SIZE if layer == 0 else UNITS
        bias = initializers.zeros(4 * UNITS)
        bias[UNITS : 2 * UNITS] = 1.0  # Forget nothing at first.
        weights += [
            initializers.he_normal(rng, input_size, 4 * UNITS),
            initializers.orthogonal(rng, UNITS, 4 * UNITS),
            bias,
        ]
    weights.append(initializers.glorot_uniform(rng, UNITS, vocab_size))
    weights.append(initializers.zeros(vocab_size))
    return tuple(weights)
