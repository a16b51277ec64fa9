"""Classifiers of 32 x 32 colour images, giving logits.

`cnn` is the model of Yao et al., "Federated learning with unbiased gradient
aggregation and controllable meta updating" (https://arxiv.org/abs/1910.08234):
that of McMahan et al. (https://arxiv.org/abs/1602.05629) with dropout and without
response normalisation. Where the paper is silent, images are whole, convolutions
keep their size and half of the hidden units are dropped.

`cnn_lrn` is the model of Hu et al., "Federated learning meets multi-objective
optimization" (https://arxiv.org/abs/2006.11489): with response normalisation, as
PyTorch defines it, without dropout and padding.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from tasks.models import classifier, image, layers

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow as tf
import tensorflow_federated as tff

ModelId = Literal["cnn", "cnn_lrn"]

IMAGE_SHAPE = (32, 32, 3)

_DROPOUT_RATE = 0.5


def build_cifar_model(
    model_id: ModelId, num_classes: int, seed: int
) -> tff.learning.models.FunctionalModel:
    """Returns a classifier of 32 x 32 colour images.

    Args:
      model_id: "cnn" (two 5 x 5 convolutions of 64 filters, each before a 3 x 3
        max pooling with stride 2, dense 384 and 192 with dropout; 1,756,426
        weights for 10 classes).
      num_classes: Number of classes, at least 1.
      seed: Decides the initial weights: Glorot uniform kernels, zero biases.

    Returns:
      A model with `x` float32 `[None, 32, 32, 3]`, `y` int32 `[None]`, logits
      float32 `[None, num_classes]`, the metrics of `metrics.Classification`, and
      trainable weights kernel, bias, kernel, bias, ... Dropout, in training
      only, is a function of the weights and the batch.

    Raises:
      image.UnknownModelError: If there is no `model_id`.
      ValueError: If `num_classes` is not positive.
    """
    if model_id not in get_args(ModelId):
        raise image.UnknownModelError(
            f"Expected a model out of {', '.join(get_args(ModelId))}, "
            f"found {model_id!r}."
        )
    if num_classes < 1:
        raise ValueError(f"Expected a positive num_classes, found {num_classes}.")

    forward, size = (_cnn, 8) if model_id == "cnn" else (_cnn_lrn, 5)
    kernel_shapes = (
        (5, 5, 3, 64),
        (5, 5, 64, 64),
        (size * size * 64, 384),
        (384, 192),
        (192, num_classes),
    )
    weights = classifier.glorot_weights(kernel_shapes, seed)
    return classifier.build(forward, weights, IMAGE_SHAPE)


def _cnn(weights: Sequence[tf.Tensor], x: tf.Tensor, training: bool) -> tf.Tensor:
    filters_1, bias_1, filters_2, bias_2, *head = weights
    kernel_1, hidden_bias_1, kernel_2, hidden_bias_2, kernel, bias = head
    if training:
        seed = layers.fingerprint(bias, x)
    x = _max_pool2d(tf.nn.relu(layers.conv2d(x, filters_1, bias_1, "SAME")))
    x = _max_pool2d(tf.nn.relu(layers.conv2d(x, filters_2, bias_2, "SAME")))
    x = tf.nn.relu(layers.dense(layers.flatten(x), kernel_1, hidden_bias_1))
    if training:
        x = layers.dropout(x, _DROPOUT_RATE, seed, salt=1)
    x = tf.nn.relu(layers.dense(x, kernel_2, hidden_bias_2))
    if training:
        x = layers.dropout(x, _DROPOUT_RATE, seed, salt=2)
    return layers.dense(x, kernel, bias)


def _max_pool2d(x: tf.Tensor) -> tf.Tensor:
    """Returns the maxima of overlapping 3 x 3 windows, every second one."""
    return tf.nn.max_pool2d(x, ksize=3, strides=2, padding="SAME")


def _cnn_lrn(weights: Sequence[tf.Tensor], x: tf.Tensor, training: bool) -> tf.Tensor:
    del training  # The same in both.
    filters_1, bias_1, filters_2, bias_2, *head = weights
    kernel_1, hidden_bias_1, kernel_2, hidden_bias_2, kernel, bias = head
    x = tf.nn.relu(layers.conv2d(x, filters_1, bias_1, "VALID"))
    x = pairwise_response_normalisation(layers.max_pool2d(x))
    x = tf.nn.relu(layers.conv2d(x, filters_2, bias_2, "VALID"))
    x = layers.max_pool2d(pairwise_response_normalisation(x))
    x = tf.nn.relu(layers.dense(layers.flatten(x), kernel_1, hidden_bias_1))
    x = tf.nn.relu(layers.dense(x, kernel_2, hidden_bias_2))
    return layers.dense(x, kernel, bias)


def pairwise_response_normalisation(
    x: tf.Tensor, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> tf.Tensor:
    """Divides every channel by a power of its own energy and the previous channel's.

    Local response normalisation (Krizhevsky et al., "ImageNet classification with
    deep convolutional neural networks", NIPS 2012) over windows of two channels, by
    PyTorch's conventions, which are the defaults: the window reaches back, and alpha
    is divided by its size. `tf.nn.local_response_normalization` has odd windows only.

    Args:
      x: float `[..., channels]`.
      alpha: Weight of the mean of the window's squares, at least 0.
      beta: Exponent.
      k: Added to it, positive.

    Returns:
      `x_c / (k + alpha / 2 * (x_{c-1}^2 + x_c^2))^beta`, like `x`; what comes before
      the first channel is 0.
    """
    square = tf.square(x)
    first = tf.zeros_like(square[..., :1])
    previous = tf.concat([first, square[..., :-1]], axis=-1)
    return x * tf.pow(k + (alpha / 2.0) * (previous + square), -beta)
