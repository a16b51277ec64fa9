"""Text models that predict the next character or word at every position.

Two LSTM layers of 256 units: McMahan et al., "Communication-efficient learning
of deep networks from decentralized data", AISTATS 2017
(https://arxiv.org/abs/1602.05629). The same function as
`tff.simulation.baselines.shakespeare`'s model wherever the target is not padding.

One GRU layer of 1,024 units: the model that Yao et al., "Federated learning with
unbiased gradient aggregation and controllable meta updating"
(https://arxiv.org/abs/1910.08234), train on Shakespeare.

One LSTM layer of 670 units before a narrow linear layer: the word model that Reddi et
al., "Adaptive federated optimization", ICLR 2021
(https://arxiv.org/abs/2003.00295), train on Stack Overflow. The same function as
`tff.simulation.baselines.stackoverflow`'s model wherever the target is not padding.

The blocks are the embedding, each recurrent layer, and the dense layers. The tensors
between them are `[n, sequence_length, size]`.
"""

import functools
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import tensorflow as tf

from tasks.models import initializers, layers, metrics
from tff_algos.layers import gru, lstm, recurrence
from tff_algos.models.block_model import Block, BlockModel, chain, layer

PADDING_ID = 0

_LayerWeights = tuple[np.ndarray, np.ndarray, np.ndarray]


@attrs.frozen(kw_only=True)
class _Architecture:
    """Recurrent layers between an embedding and dense layers.

    Attributes:
      embedding_size: Size of a token's vector.
      units: Units of every recurrent layer.
      num_layers: Number of recurrent layers.
      layer: `(x [time, n, in], kernel, recurrent kernel, bias) -> [time, n, units]`.
      initial_layer: Draws a layer's weights, given a generator, `in` and `units`.
      projection_size: Size of a linear layer before the logits; None for no such layer.
    """

    embedding_size: int
    units: int
    num_layers: int
    layer: Callable[..., tf.Tensor]
    initial_layer: Callable[[np.random.Generator, int, int], _LayerWeights]
    projection_size: int | None = None


def build_lstm_model(
    vocab_size: int = 90,
    sequence_length: int = 80,
    seed: int = 0,
    gradient: recurrence.Gradient = "fused",
) -> BlockModel:
    """Returns two LSTM layers that predict the next character at every position.

    Args:
      vocab_size: Number of characters, including id 0 (padding).
      sequence_length: Characters per example.
      seed: Seed of the initial weights: Keras' defaults (uniform embedding, orthogonal
        recurrent kernels, forget bias one, Glorot uniform output) except for He-normal
        LSTM kernels, as in the baseline.
      gradient: How the LSTM layers are differentiated, see `recurrence.apply`.

    Returns:
      A model with `x` int32 `[None, sequence_length]`, `y` the same, logits
      float32 `[None, sequence_length, vocab_size]`, loss and accuracy over targets
      that are not padding, the metrics of `metrics.Classification`, and
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
) -> BlockModel:
    """Returns a GRU layer that predicts the next character at every position.

    Args:
      vocab_size: Number of characters, including id 0 (padding).
      sequence_length: Characters per example.
      seed: Seed of the initial weights: Keras' defaults (uniform embedding, Glorot
        uniform kernels, orthogonal recurrent kernel, zero biases).
      embedding_size: Size of a character's vector.
      units: Units of the GRU layer.
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


def build_word_model(
    vocab_size: int = 10_004,
    sequence_length: int = 20,
    seed: int = 0,
    unscored_ids: Sequence[int] = (),
    gradient: recurrence.Gradient = "fused",
) -> BlockModel:
    """Returns an LSTM layer that predicts the next word at every position.

    Args:
      vocab_size: Number of words, including id 0 (padding) and other special ids.
      sequence_length: Words per example.
      seed: Seed of the initial weights: Keras' defaults (uniform embedding, Glorot
        uniform kernels, orthogonal recurrent kernel, forget bias one), as in the
        baseline.
      unscored_ids: Targets that count in the loss but not in the accuracy, by
        convention out-of-vocabulary words and ends of sentences.
      gradient: How the LSTM layer is differentiated, see `recurrence.apply`.

    Returns:
      A model as `build_lstm_model` describes it, with trainable weights embedding,
      kernel, recurrent kernel, bias, (kernel, bias) of each dense layer: 4,050,748 for
      10,000 words and 4 special ones.

    Raises:
      ValueError: If `vocab_size` or `sequence_length` is not positive.
    """
    architecture = _Architecture(
        embedding_size=96,
        units=670,
        num_layers=1,
        layer=functools.partial(lstm.lstm, gradient=gradient),
        initial_layer=_initial_keras_lstm,
        projection_size=96,
    )
    return _build_model(
        architecture, vocab_size, sequence_length, seed, tuple(unscored_ids)
    )


def _build_model(
    architecture: _Architecture,
    vocab_size: int,
    sequence_length: int,
    seed: int,
    unscored_ids: tuple[int, ...] = (),
) -> BlockModel:
    for name, value in (
        ("vocab_size", vocab_size),
        ("sequence_length", sequence_length),
        ("embedding_size", architecture.embedding_size),
        ("units", architecture.units),
    ):
        if value < 1:
            raise ValueError(f"Expected a positive {name}, found {value}.")
    classification = metrics.Classification(
        padding_id=PADDING_ID, unscored_ids=unscored_ids
    )
    spec = tf.TensorSpec([None, sequence_length], tf.int32)
    return BlockModel(
        _build_blocks(architecture, vocab_size, sequence_length, seed),
        loss_fn=classification.loss,
        metrics_fns=classification.metrics_fns(),
        input_spec=(spec, spec),
        target_weights_fn=classification.target_weights,
    )


def _build_blocks(
    architecture: _Architecture, vocab_size: int, sequence_length: int, seed: int
) -> list[Block]:
    rng = np.random.default_rng(seed)
    size, units = architecture.embedding_size, architecture.units
    table = initializers.uniform(rng, vocab_size, size, limit=0.05)
    blocks = [layer(_embedding, table)]
    recurrent = functools.partial(_recurrent, architecture.layer, sequence_length)
    for _ in range(architecture.num_layers):
        blocks.append(layer(recurrent, *architecture.initial_layer(rng, size, units)))
        size = units
    dense_layers = []
    for size_out in (architecture.projection_size, vocab_size):
        if size_out is not None:
            kernel = initializers.glorot_uniform(rng, size, size_out)
            dense_layers.append(layer(_dense, kernel, initializers.zeros(size_out)))
            size = size_out
    blocks.append(chain(*dense_layers))
    return blocks


def _embedding(x: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """Returns the rows of `table` [vocab_size, size] for `x` [n, time]."""
    # A product with one-hot rows instead of a lookup: its gradient is dense and always
    # summed in the same order. The cost is negligible for characters, and about a tenth
    # of a step for ten thousand words.
    vocab_size, size = table.shape
    length = x.shape[1]
    one_hot = tf.one_hot(tf.reshape(tf.transpose(x), [-1]), vocab_size)
    rows = tf.reshape(tf.matmul(one_hot, table), [length, -1, size])
    return tf.transpose(rows, [1, 0, 2])


def _recurrent(
    recurrent_layer: Callable[..., tf.Tensor],
    sequence_length: int,
    x: tf.Tensor,
    *weights: tf.Tensor,
) -> tf.Tensor:
    """Applies a time-major layer to `x` [n, time, size]."""
    outputs = recurrent_layer(tf.transpose(x, [1, 0, 2]), *weights)
    # The loop over time loses the static number of steps.
    outputs = tf.reshape(outputs, [sequence_length, -1, outputs.shape[-1]])
    return tf.transpose(outputs, [1, 0, 2])


def _dense(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Applies a linear layer to every position of `x` [n, time, size]."""
    length, size = x.shape[1:]
    output = layers.dense(tf.reshape(x, [-1, size]), kernel, bias)
    return tf.reshape(output, [-1, length, output.shape[-1]])


def _initial_lstm(rng: np.random.Generator, size: int, units: int) -> _LayerWeights:
    return _with_lstm_state(rng, initializers.he_normal(rng, size, 4 * units), units)


def _initial_keras_lstm(
    rng: np.random.Generator, size: int, units: int
) -> _LayerWeights:
    kernel = initializers.glorot_uniform(rng, size, 4 * units)
    return _with_lstm_state(rng, kernel, units)


def _with_lstm_state(
    rng: np.random.Generator, kernel: np.ndarray, units: int
) -> _LayerWeights:
    recurrent_kernel = initializers.orthogonal(rng, units, 4 * units)
    bias = initializers.zeros(4 * units)
    bias[units : 2 * units] = 1.0  # Forget little at first.
    return kernel, recurrent_kernel, bias


def _initial_gru(rng: np.random.Generator, size: int, units: int) -> _LayerWeights:
    kernel = initializers.glorot_uniform(rng, size, 3 * units)
    recurrent_kernel = initializers.orthogonal(rng, units, 3 * units)
    return kernel, recurrent_kernel, initializers.zeros(2, 3 * units)
