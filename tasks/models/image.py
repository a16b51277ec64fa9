"""Classifiers of 28 x 28 images, those of TFF's EMNIST baselines, giving logits.

`cnn` and `2nn` are the models of McMahan et al., "Communication-efficient
learning of deep networks from decentralized data", AISTATS 2017
(https://arxiv.org/abs/1602.05629); `cnn_dropout` is the one of Reddi et al.,
"Adaptive federated optimization", ICLR 2021 (https://arxiv.org/abs/2003.00295).
The same functions as `tff.simulation.baselines.emnist`, but for the last softmax,
which is part of the loss here.

`cnn_dense_dropout` is `cnn` with dropout after its dense layer, the model of Yao et
al., "Federated learning with unbiased gradient aggregation and controllable meta
updating" (https://arxiv.org/abs/1910.08234). They don't give the rate; 0.5 here.
"""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import attrs
import numpy as np

from tasks.models import initializers, layers, metrics

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow as tf
import tensorflow_federated as tff

ModelId = Literal["cnn", "cnn_dropout", "2nn", "cnn_dense_dropout"]

IMAGE_SHAPE = (28, 28, 1)

_Forward = Callable[[Sequence[tf.Tensor], tf.Tensor, bool], tf.Tensor]


class UnknownModelError(ValueError):
    """There is no model of that name; says which there are."""


@attrs.frozen
class _Architecture:
    """Shapes of (kernel, bias) pairs in order, and the function they are used by."""

    kernel_shapes: tuple[tuple[int, ...], ...]
    forward: _Forward


def build_emnist_model(
    model_id: ModelId, only_digits: bool, seed: int
) -> tff.learning.models.FunctionalModel:
    """Returns a classifier of 28 x 28 images.

    Args:
      model_id: "cnn" (two 5 x 5 convolutions, dense 512; 1,663,370 weights for
        digits, 1,690,046 otherwise), "cnn_dense_dropout" (the same, with dropout
        after the dense layer), "cnn_dropout" (two 3 x 3 convolutions, dense 128,
        dropout; 1,199,882 or 1,206,590) or "2nn" (two dense layers of 200; 199,210
        or 209,662).
      only_digits: 10 classes instead of 62.
      seed: Decides the initial weights: Glorot uniform kernels, zero biases.

    Returns:
      A model with `x` float32 `[None, 28, 28, 1]`, `y` int32 `[None]`, logits
      float32 `[None, classes]`, the metrics of `metrics.Classification`, and
      trainable weights kernel, bias, kernel, bias, ... Dropout, in training
      only, is a function of the weights and the batch.

    Raises:
      UnknownModelError: If there is no `model_id`.
    """
    if model_id not in get_args(ModelId):
        raise UnknownModelError(
            f"Expected a model out of {', '.join(get_args(ModelId))}, "
            f"found {model_id!r}."
        )
    architecture = _architecture(model_id, num_classes=10 if only_digits else 62)
    rng = np.random.default_rng(seed)
    weights = []
    for shape in architecture.kernel_shapes:
        weights.append(initializers.glorot_uniform(rng, *shape))
        weights.append(initializers.zeros(shape[-1]))

    @tf.function
    def predict_on_batch(model_weights, x, training):
        trainable, _ = model_weights
        return architecture.forward(trainable, x, training)

    classification = metrics.Classification()
    return tff.learning.models.FunctionalModel(
        initial_weights=(tuple(weights), ()),
        predict_on_batch_fn=predict_on_batch,
        loss_fn=classification.loss,
        metrics_fns=classification.metrics_fns(),
        input_spec=(
            tf.TensorSpec([None, *IMAGE_SHAPE], tf.float32),
            tf.TensorSpec([None], tf.int32),
        ),
    )


def _architecture(model_id: ModelId, num_classes: int) -> _Architecture:
    match model_id:
        case "cnn" | "cnn_dense_dropout":
            shapes = ((5, 5, 1, 32), (5, 5, 32, 64), (3136, 512), (512, num_classes))
            forward = _cnn if model_id == "cnn" else _cnn_dense_dropout
            return _Architecture(shapes, forward)
        case "cnn_dropout":
            shapes = ((3, 3, 1, 32), (3, 3, 32, 64), (9216, 128), (128, num_classes))
            return _Architecture(shapes, _cnn_dropout)
        case "2nn":
            shapes = ((784, 200), (200, 200), (200, num_classes))
            return _Architecture(shapes, _two_hidden_layers)


def _cnn(weights: Sequence[tf.Tensor], x: tf.Tensor, training: bool) -> tf.Tensor:
    del training  # The same in both.
    *hidden_weights, kernel, bias = weights
    return layers.dense(_cnn_hidden(hidden_weights, x), kernel, bias)


def _cnn_dense_dropout(
    weights: Sequence[tf.Tensor], x: tf.Tensor, training: bool
) -> tf.Tensor:
    *hidden_weights, kernel, bias = weights
    hidden = _cnn_hidden(hidden_weights, x)
    if training:
        hidden = layers.dropout(hidden, 0.5, layers.fingerprint(bias, x), salt=1)
    return layers.dense(hidden, kernel, bias)


def _cnn_hidden(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Returns the last hidden layer of `cnn`, `[n, 512]`."""
    filters_1, bias_1, filters_2, bias_2, kernel, bias = weights
    x = layers.max_pool2d(tf.nn.relu(layers.conv2d(x, filters_1, bias_1, "SAME")))
    x = layers.max_pool2d(tf.nn.relu(layers.conv2d(x, filters_2, bias_2, "SAME")))
    return tf.nn.relu(layers.dense(layers.flatten(x), kernel, bias))


def _cnn_dropout(
    weights: Sequence[tf.Tensor], x: tf.Tensor, training: bool
) -> tf.Tensor:
    filters_1, bias_1, filters_2, bias_2, *head = weights
    hidden_kernel, hidden_bias, kernel, bias = head
    if training:
        seed = layers.fingerprint(bias, x)
    x = tf.nn.relu(layers.conv2d(x, filters_1, bias_1, "VALID"))
    x = tf.nn.relu(layers.conv2d(x, filters_2, bias_2, "VALID"))
    x = layers.flatten(layers.max_pool2d(x))
    if training:
        x = layers.dropout(x, 0.25, seed, salt=1)
    x = tf.nn.relu(layers.dense(x, hidden_kernel, hidden_bias))
    if training:
        x = layers.dropout(x, 0.5, seed, salt=2)
    return layers.dense(x, kernel, bias)


def _two_hidden_layers(
    weights: Sequence[tf.Tensor], x: tf.Tensor, training: bool
) -> tf.Tensor:
    del training  # The same in both.
    kernel_1, bias_1, kernel_2, bias_2, kernel, bias = weights
    x = tf.nn.relu(layers.dense(layers.flatten(x), kernel_1, bias_1))
    x = tf.nn.relu(layers.dense(x, kernel_2, bias_2))
    return layers.dense(x, kernel, bias)
