"""Image classifiers with normalization layers, returning logits.

The models that Luo et al., "GradMA: a gradient-memory-based accelerated federated
learning with alleviated catastrophic forgetting", CVPR 2023
(https://arxiv.org/abs/2302.14307), train: three dense layers on MNIST (TinyNN), a wide
LeNet on CIFAR-10, VGG-11 (Simonyan and Zisserman, https://arxiv.org/abs/1409.1556) on
CIFAR-100, and on Tiny-ImageNet the ResNet-20 for small images of He et al., "Deep
residual learning for image recognition", CVPR 2016 (https://arxiv.org/abs/1512.03385):
16, 32 and 64 channels, shortcuts without weights. Except for the shortcuts and widths
of ResNet-20, the models are those of the authors' code.

Every `build_*` takes the kind of normalization: "batch", the paper's; "group", without
moving statistics that would mix clients; or "none". It returns a model with
`x` float32 `[None, height, width, channels]`, `y` int32 `[None]`, logits float32
`[None, num_classes]` and the metrics of `metrics.Classification`. Initial kernels are
Glorot uniform, biases and betas zero, gammas one.
"""

from collections.abc import Collection, Sequence
from typing import Annotated, get_args

import numpy as np
import tensorflow as tf

from tasks.models import classifier
from tasks.models.blocks import (
    FLATTEN,
    MAX_POOL,
    RELU,
    Norm,
    conv2d,
    conv2d_3x3,
    dense,
    dropout,
    norm_layer,
    residual,
)
from tff_algos.hyperparameters import HyperparameterError, hparam
from tff_algos.models.block_model import Block, BlockModel, chain, layer

_COLOR_IMAGE_SHAPE = (32, 32, 3)
_DROPOUT_RATE = 0.5

# Output channels of VGG-11's convolutions, grouped by the pooling that follows.
_VGG11_CHANNELS = ((64,), (128,), (256, 256), (512, 512), (512, 512))

_RESNET20_CHANNELS = (16, 32, 64)
_RESNET20_DEPTH = 3


# The type of a task's option `norm`. None means "batch" if the model has normalization
# layers, and is the only valid value if it has none; see `check_norm`.
NormOption = Annotated[Norm | None, hparam()]


def check_norm(
    model: str, norm: Norm | None, models_with_norm: Collection[str]
) -> None:
    """Checks a task's option `norm` against its option `model`.

    Raises:
      HyperparameterError: If `norm` is set and the model has no normalization layers.
    """
    if norm is not None and model not in models_with_norm:
        raise HyperparameterError(
            "norm",
            norm,
            f"no value with model={model!r}, which has no normalization; "
            f"models that have it: {', '.join(models_with_norm)}",
        )


def build_tiny_nn(
    image_shape: Sequence[int], num_classes: int, seed: int, norm: Norm = "batch"
) -> BlockModel:
    """Returns two normalized dense layers of 200 and 100 units and a dense classifier.

    178,710 weights for 28 x 28 images of 10 classes, 600 of them in normalization
    layers. Each layer is a block.

    Args:
      image_shape: Height, width and channels.
      num_classes: Number of classes, at least 1.
      seed: Seed of the initial weights.
      norm: The kind of normalization.

    Raises:
      ValueError: If `num_classes` is not positive or `norm` is unknown.
    """
    _check(num_classes, norm)
    rng = np.random.default_rng(seed)
    return classifier.build(
        [
            chain(FLATTEN, _hidden(rng, int(np.prod(image_shape)), 200, norm)),
            _hidden(rng, 200, 100, norm),
            dense(rng, 100, num_classes),
        ],
        image_shape,
    )


def build_lenet(num_classes: int, seed: int, norm: Norm = "batch") -> BlockModel:
    """Returns a wide LeNet for 32 x 32 color images.

    Two 5 x 5 convolutions of 32 and 64 filters without padding, each followed by 2 x 2
    max pooling; dense 512 and 128 with dropout; all four normalized. 941,834 weights
    for 10 classes, 1,472 of them in normalization layers. Blocks end after each
    pooling, after dense 512, and with the logits.

    Args:
      num_classes: Number of classes, at least 1.
      seed: Seed of the initial weights.
      norm: The kind of normalization.

    Raises:
      ValueError: If `num_classes` is not positive or `norm` is unknown.
    """
    _check(num_classes, norm)
    rng = np.random.default_rng(seed)

    def convolution(channels_in, channels_out):
        return chain(
            conv2d(rng, 5, channels_in, channels_out, "VALID"),
            norm_layer(norm, channels_out),
            RELU,
            MAX_POOL,
        )

    return classifier.build(
        [
            convolution(3, 32),
            chain(convolution(32, 64), FLATTEN),
            chain(_hidden(rng, 5 * 5 * 64, 512, norm), dropout(_DROPOUT_RATE, salt=1)),
            chain(
                _hidden(rng, 512, 128, norm),
                dropout(_DROPOUT_RATE, salt=2),
                dense(rng, 128, num_classes),
            ),
        ],
        _COLOR_IMAGE_SHAPE,
    )


def build_vgg11(num_classes: int, seed: int, norm: Norm = "batch") -> BlockModel:
    """Returns VGG-11 for 32 x 32 color images.

    Eight normalized 3 x 3 convolutions with five 2 x 2 max poolings; dense 128 with
    dropout. 9,304,548 weights for 100 classes, 5,504 of them in normalization layers.
    Blocks end after each pooling and with the logits.

    Args:
      num_classes: Number of classes, at least 1.
      seed: Seed of the initial weights.
      norm: The kind of normalization.

    Raises:
      ValueError: If `num_classes` is not positive or `norm` is unknown.
    """
    _check(num_classes, norm)
    rng = np.random.default_rng(seed)
    channels_in, stages = 3, []
    for stage in _VGG11_CHANNELS:
        convolutions = []
        for channels in stage:
            convolutions += [
                conv2d(rng, 3, channels_in, channels, "SAME"),
                norm_layer(norm, channels),
                RELU,
            ]
            channels_in = channels
        stages.append(chain(*convolutions, MAX_POOL))
    *stages, last_stage = stages
    return classifier.build(
        [
            *stages,
            chain(last_stage, FLATTEN),
            chain(
                dense(rng, channels_in, 128),
                RELU,
                dropout(_DROPOUT_RATE, salt=1),
                dense(rng, 128, num_classes),
            ),
        ],
        _COLOR_IMAGE_SHAPE,
    )


def build_resnet20(
    num_classes: int,
    seed: int,
    norm: Norm = "batch",
    image_shape: Sequence[int] = (64, 64, 3),
) -> BlockModel:
    """Returns ResNet-20: a 3 x 3 convolution, three stages of three residual units.

    282,072 weights for 200 classes, 1,376 of them in normalization layers. Convolutions
    have no biases. Blocks end after the first convolution, after each stage (the last
    stage ends with the mean over the image), and with the logits.

    Args:
      num_classes: Number of classes, at least 1.
      seed: Seed of the initial weights.
      norm: The kind of normalization.
      image_shape: Height, width and channels.

    Raises:
      ValueError: If `num_classes` is not positive or `norm` is unknown.
    """
    _check(num_classes, norm)
    rng = np.random.default_rng(seed)
    channels_in = _RESNET20_CHANNELS[0]
    first = chain(_normalized_conv(rng, image_shape[-1], channels_in, 1, norm), RELU)
    stages = []
    for channels in _RESNET20_CHANNELS:
        units = []
        for _ in range(_RESNET20_DEPTH):
            units.append(_residual_unit(rng, channels_in, channels, norm))
            channels_in = channels
        stages.append(chain(*units))
    *stages, last_stage = stages
    return classifier.build(
        [
            first,
            *stages,
            chain(last_stage, layer(_mean_over_image)),
            dense(rng, channels_in, num_classes),
        ],
        image_shape,
    )


def _check(num_classes: int, norm: Norm) -> None:
    if num_classes < 1:
        raise ValueError(f"Expected a positive num_classes, found {num_classes}.")
    if norm not in get_args(Norm):
        raise ValueError(
            f"Expected norm out of {', '.join(get_args(Norm))}, found {norm!r}."
        )


def _hidden(rng: np.random.Generator, size_in: int, size_out: int, norm: Norm) -> Block:
    return chain(dense(rng, size_in, size_out), norm_layer(norm, size_out), RELU)


def _normalized_conv(
    rng: np.random.Generator,
    channels_in: int,
    channels_out: int,
    strides: int,
    norm: Norm,
) -> Block:
    convolution = conv2d_3x3(rng, channels_in, channels_out, strides)
    return chain(convolution, norm_layer(norm, channels_out))


def _residual_unit(
    rng: np.random.Generator, channels_in: int, channels_out: int, norm: Norm
) -> Block:
    """Returns a unit that halves the image's size if it increases the channels."""
    strides = channels_out // channels_in

    def shortcut(x):
        if strides == 1:
            return x
        added = [0, channels_out - channels_in]
        return tf.pad(x[:, ::strides, ::strides], [[0, 0], [0, 0], [0, 0], added])

    return residual(
        chain(
            _normalized_conv(rng, channels_in, channels_out, strides, norm),
            RELU,
            _normalized_conv(rng, channels_out, channels_out, 1, norm),
        ),
        shortcut,
    )


def _mean_over_image(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(x, axis=[1, 2])
