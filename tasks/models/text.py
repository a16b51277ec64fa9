"""Models of text: the next character at every position.

Two LSTM layers of 256 units: McMahan et al., "Communication-efficient learning
of deep networks from decentralized data", AISTATS 2017
(https://arxiv.org/abs/1602.05629). The same function as
`tff.simulation.baselines.shakespeare`'s model wherever the target is no padding.

One GRU layer of 1,024 units: the model that Yao et al., "Federated learning with
unbiased gradient aggregation and controllable meta updating"
(https://arxiv.org/abs/1910.08234), train on Shakespeare.
"""

import functools
from collections.abc import Callable

import attrs
import numpy as np

from tasks.models import gru, initializers, layers, lstm, metrics, recurrence

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow as tf
import tensorflow_federated as tff

PADDING_ID = 0

_LayerWeights = tuple[np.ndarray, np.ndarray, np.ndarray]


@attrs.frozen(kw_only=True)
class _Architecture:
    """Recurrent layers between an embedding and a dense layer.

    Attributes:
      embedding_size: Size of a character's vector.
      units: Of every recurrent layer.
      num_layers: Number of recurrent layers.
      layer: `(x [time, n, in], kernel, recurrent kernel, bias) -> [time, n, units]`.
      initial_layer: Makes a layer's weights from a generator, `in` and `units`.
    """

    embedding_size: int
    units: int
    num_layers: int
    layer: Callable[..., tf.Tensor]
    initial_layer: Callable[[np.random.Generator, int, int], _LayerWeights]


def build_lstm_model(
    vocab_size: int = 90,
    sequence_length: int = 80,
    seed: int = 0,
    gradient: recurrence.Gradient = "fused",
) -> tff.learning.models.FunctionalModel:
    """Returns two LSTM layers that predict the next character at every position.

    Args:
      vocab_size: Number of characters, id 0 (padding) among them.
      sequence_length: Characters per example.
      seed: Decides the initial weights: Keras' defaults (uniform embedding,
        orthogonal recurrent kernels, forget bias one, Glorot uniform output)
        but for He-normal LSTM kernels, as the baseline has them.
      gradient: How the LSTM layers are differentiated, see `recurrence.apply`.

    Returns:
      A model with `x` int32 `[None, sequence_length]`, `y` the same, logits
      float32 `[None, sequence_length, vocab_size]`, loss and accuracy over the
      targets other than padding, the metrics of `metrics.Classification`, and
      trainable weights embedding, (kernel, recurrent kernel, bias) of each
      layer, kernel, bias: 820,522 for 90 characters.

    Raises:
      ValueError: If `vocab_size` or `sequence_length` is not positive.
    """
    architecture = _Architecture(
        embedding_size=8,
        units=256,
        num_layers=2,
        layer=functools.partial(lstm.lstm, gradient=gradient),
        initial_layer=_initial_lstm,
    )
    return _build_model(architecture, vocab_size, sequence_length, seed)


def build_gru_model(
    vocab_size: int = 90,
    sequence_length: int = 80,
    seed: int = 0,
    embedding_size: int = 256,
    units: int = 1024,
    gradient: recurrence.Gradient = "fused",
) -> tff.learning.models.FunctionalModel:
    """Returns a GRU layer that predicts the next character at every position.

    Args:
      vocab_size: Number of characters, id 0 (padding) among them.
      sequence_length: Characters per example.
      seed: Decides the initial weights: Keras' defaults (uniform embedding, Glorot
        uniform kernels, orthogonal recurrent kernel, zero biases).
      embedding_size: Size of a character's vector.
      units: Of the GRU layer.
      gradient: How the GRU layer is differentiated, see `recurrence.apply`.

    Returns:
      A model as `build_lstm_model` describes it, with trainable weights embedding,
      kernel, recurrent kernel, bias `[2, 3 * units]`, kernel, bias: 4,053,594 for
      90 characters, 4,048,470 for 86.

    Raises:
      ValueError: If a size is not positive.
    """
    architecture = _Architecture(
        embedding_size=embedding_size,
        units=units,
        num_layers=1,
        layer=functools.partial(gru.gru, gradient=gradient),
        initial_layer=_initial_gru,
    )
    return _build_model(architecture, vocab_size, sequence_length, seed)


def _build_model(
    architecture: _Architecture, vocab_size: int, sequence_length: int, seed: int
) -> tff.learning.models.FunctionalModel:
    for name, value in (
        ("vocab_size", vocab_size),
        ("sequence_length", sequence_length),
        ("embedding_size", architecture.embedding_size),
        ("units", architecture.units),
    ):
        if value < 1:
            raise ValueError(f"Expected a positive {name}, found {value}.")

    @tf.function
    def predict_on_batch(model_weights, x, training):
        del training  # The same in both.
        (embedding, *layer_weights, kernel, bias), _ = model_weights
        # A product with one-hot rows instead of a lookup: its gradient is dense
        # and always sums in the same order, and it costs nothing at this size.
        one_hot = tf.one_hot(tf.reshape(tf.transpose(x), [-1]), vocab_size)
        hidden = tf.reshape(
            tf.matmul(one_hot, embedding),
            [sequence_length, -1, architecture.embedding_size],
        )
        for start in range(0, len(layer_weights), 3):
            hidden = architecture.layer(hidden, *layer_weights[start : start + 3])
        hidden = tf.reshape(tf.transpose(hidden, [1, 0, 2]), [-1, architecture.units])
        logits = layers.dense(hidden, kernel, bias)
        return tf.reshape(logits, [-1, sequence_length, vocab_size])

    classification = metrics.Classification(padding_id=PADDING_ID)
    spec = tf.TensorSpec([None, sequence_length], tf.int32)
    return tff.learning.models.FunctionalModel(
        initial_weights=(_initial_weights(architecture, vocab_size, seed), ()),
        predict_on_batch_fn=predict_on_batch,
        loss_fn=classification.loss,
        metrics_fns=classification.metrics_fns(),
        input_spec=(spec, spec),
    )


def _initial_weights(
    architecture: _Architecture, vocab_size: int, seed: int
) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    size, units = architecture.embedding_size, architecture.units
    weights = [initializers.uniform(rng, vocab_size, size, limit=0.05)]
    for _ in range(architecture.num_layers):
        weights += architecture.initial_layer(rng, size, units)
        size = units
    weights.append(initializers.glorot_uniform(rng, units, vocab_size))
    weights.append(initializers.zeros(vocab_size))
    return tuple(weights)


def _initial_lstm(rng: np.random.Generator, size: int, units: int) -> _LayerWeights:
    kernel = initializers.he_normal(rng, size, 4 * units)
    recurrent_kernel = initializers.orthogonal(rng, units, 4 * units)
    bias = initializers.zeros(4 * units)
    bias[units : 2 * units] = 1.0  # Forget nothing at first.
    return kernel, recurrent_kernel, bias


def _initial_gru(rng: np.random.Generator, size: int, units: int) -> _LayerWeights:
    kernel = initializers.glorot_uniform(rng, size, 3 * units)
    recurrent_kernel = initializers.orthogonal(rng, units, 3 * units)
    return kernel, recurrent_kernel, initializers.zeros(2, 3 * units)
