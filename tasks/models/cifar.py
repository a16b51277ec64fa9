"""Classifiers of 32 x 32 color images that return logits.

`cnn` is the model of Yao et al., "Federated learning with unbiased gradient
aggregation and controllable meta updating" (https://arxiv.org/abs/1910.08234):
that of McMahan et al. (https://arxiv.org/abs/1602.05629) with dropout and without
response normalization. Details that the paper does not report: images are not cropped,
convolutions keep the size, and half of the hidden units are dropped.

`cnn_lrn` is the model of Hu et al., "Federated learning meets multi-objective
optimization" (https://arxiv.org/abs/2006.11489): with response normalization, as
PyTorch defines it, without dropout and padding.
"""

from typing import Literal, get_args

import numpy as np
import tensorflow as tf

from tasks.models import classifier, image
from tasks.models.blocks import FLATTEN, MAX_POOL, RELU, conv2d, dense, dropout
from tff_algos.models.block_model import Block, BlockModel, chain, layer

ModelId = Literal["cnn", "cnn_lrn"]

IMAGE_SHAPE = (32, 32, 3)

_DROPOUT_RATE = 0.5


def build_cifar_model(model_id: ModelId, num_classes: int, seed: int) -> BlockModel:
    """Returns a classifier of 32 x 32 color images.

    Args:
      model_id: "cnn" (two 5 x 5 convolutions of 64 filters, each before a 3 x 3
        max pooling with stride 2, dense 384 and 192 with dropout; 1,756,426
        weights for 10 classes), or "cnn_lrn" (the same convolutions without padding,
        2 x 2 max pooling and response normalization, dense 384 and 192; 797,962
        weights for 10 classes).
      num_classes: Number of classes, at least 1.
      seed: Seed of the initial weights: Glorot uniform kernels, zero biases.

    Returns:
      A model with `x` float32 `[None, 32, 32, 3]`, `y` int32 `[None]`, logits
      float32 `[None, num_classes]`, the metrics of `metrics.Classification`, and
      trainable weights kernel, bias, kernel, bias, ... Dropout, in training of
      "cnn" only, is a function of the weights and the batch.

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

    build_blocks = {"cnn": _cnn, "cnn_lrn": _cnn_lrn}[model_id]
    return classifier.build(
        build_blocks(np.random.default_rng(seed), num_classes), IMAGE_SHAPE
    )


def _cnn(rng: np.random.Generator, num_classes: int) -> list[Block]:
    max_pool = layer(_max_pool2d)
    return [
        chain(conv2d(rng, 5, 3, 64, "SAME"), RELU, max_pool),
        chain(conv2d(rng, 5, 64, 64, "SAME"), RELU, max_pool, FLATTEN),
        chain(dense(rng, 8 * 8 * 64, 384), RELU, dropout(_DROPOUT_RATE, salt=1)),
        chain(dense(rng, 384, 192), RELU, dropout(_DROPOUT_RATE, salt=2)),
        dense(rng, 192, num_classes),
    ]


def _max_pool2d(x: tf.Tensor) -> tf.Tensor:
    """Returns 3 x 3 max pooling with stride 2."""
    return tf.nn.max_pool2d(x, ksize=3, strides=2, padding="SAME")


def _cnn_lrn(rng: np.random.Generator, num_classes: int) -> list[Block]:
    normalized = layer(pairwise_response_normalization)
    return [
        chain(conv2d(rng, 5, 3, 64, "VALID"), RELU, MAX_POOL, normalized),
        chain(conv2d(rng, 5, 64, 64, "VALID"), RELU, normalized, MAX_POOL, FLATTEN),
        chain(dense(rng, 5 * 5 * 64, 384), RELU),
        chain(dense(rng, 384, 192), RELU),
        dense(rng, 192, num_classes),
    ]


def pairwise_response_normalization(
    x: tf.Tensor, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> tf.Tensor:
    """Divides every channel by a power of its own energy and the previous channel's.

    Local response normalization (Krizhevsky et al., "ImageNet classification with
    deep convolutional neural networks", NIPS 2012) over windows of two channels, with
    PyTorch's conventions and defaults: the window ends at the channel, and alpha is
    divided by its size. `tf.nn.local_response_normalization` supports only odd windows.

    Args:
      x: float `[..., channels]`.
      alpha: Weight of the mean of the window's squares, at least 0.
      beta: Exponent.
      k: Constant added to the weighted mean, positive.

    Returns:
      `x_c / (k + alpha / 2 * (x_{c-1}^2 + x_c^2))^beta`, like `x`; the channel before
      the first is 0.
    """
    square = tf.square(x)
    first = tf.zeros_like(square[..., :1])
    previous = tf.concat([first, square[..., :-1]], axis=-1)
    return x * tf.pow(k + (alpha / 2.0) * (previous + square), -beta)
