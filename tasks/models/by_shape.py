"""Classifiers for examples of any shape, returning logits.

`cnn` and `mlp` are the models of McMahan et al., "Communication-efficient learning of
deep networks from decentralized data", AISTATS 2017 (https://arxiv.org/abs/1602.05629),
`lenet` is the one of LeCun et al., "Gradient-based learning applied to document
recognition", 1998, with max pooling and ReLU; each with layers of the sizes that the
examples need.
"""

import math
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from tasks.models import classifier, initializers, layers
from tasks.models.blocks import FLATTEN, MAX_POOL, RELU, conv2d, dense
from tff_algos.hyperparameters import HyperparameterError
from tff_algos.models.block_model import Block, BlockModel, chain, layer

ModelId = Literal["linear", "mlp", "cnn", "lenet"]

OF_IMAGES = ("cnn", "lenet")
_HIDDEN = 200


def build(
    model_id: ModelId, example_shape: Sequence[int], num_classes: int, seed: int
) -> BlockModel:
    """Returns a classifier of examples of `example_shape`.

    Args:
      model_id: "linear" (zero initial weights), "mlp" (two hidden layers of 200), "cnn"
        (two 5 x 5 convolutions of 32 and 64 filters, dense 512) or "lenet" (two 5 x 5
        convolutions of 6 and 16 filters, dense 120 and 84).
      example_shape: The shape of one example; for "cnn" and "lenet" height, width and
        channels.
      num_classes: Number of classes, at least 2.
      seed: Seed of the initial weights: Glorot uniform kernels, zero biases.

    Returns:
      A model with `x` float32 `[None, *example_shape]`, `y` int32 `[None]`, logits
      float32 `[None, num_classes]`, and the metrics of `metrics.Classification`.

    Raises:
      HyperparameterError: If there is no `model_id`, or it does not take examples of the
        shape.
    """
    if model_id not in get_args(ModelId):
        expected = f"one of {', '.join(get_args(ModelId))}"
        raise HyperparameterError("model", model_id, expected)
    if model_id in OF_IMAGES and len(example_shape) != 3:
        raise HyperparameterError(
            "model",
            model_id,
            f"linear or mlp for examples of shape {list(example_shape)}, since {model_id} "
            "takes images [height, width, channels]",
        )
    rng = np.random.default_rng(seed)
    build_blocks = {"linear": _linear, "mlp": _mlp, "cnn": _cnn, "lenet": _lenet}
    blocks = build_blocks[model_id](rng, tuple(example_shape), num_classes)
    return classifier.build(blocks, example_shape)


def _linear(
    rng: np.random.Generator, shape: tuple[int, ...], num_classes: int
) -> list[Block]:
    del rng  # The loss is convex, so any start will do.
    kernel = initializers.zeros(math.prod(shape), num_classes)
    logits = layer(layers.dense, kernel, initializers.zeros(num_classes))
    return [chain(FLATTEN, logits)]


def _mlp(
    rng: np.random.Generator, shape: tuple[int, ...], num_classes: int
) -> list[Block]:
    return [
        chain(FLATTEN, dense(rng, math.prod(shape), _HIDDEN), RELU),
        chain(dense(rng, _HIDDEN, _HIDDEN), RELU),
        dense(rng, _HIDDEN, num_classes),
    ]


def _cnn(
    rng: np.random.Generator, shape: tuple[int, ...], num_classes: int
) -> list[Block]:
    height, width, channels = shape
    # Each of two poolings rounds up.
    left = math.ceil(height / 4) * math.ceil(width / 4)
    return [
        chain(conv2d(rng, 5, channels, 32, "SAME"), RELU, MAX_POOL),
        chain(conv2d(rng, 5, 32, 64, "SAME"), RELU, MAX_POOL, FLATTEN),
        chain(dense(rng, left * 64, 512), RELU),
        dense(rng, 512, num_classes),
    ]


def _lenet(
    rng: np.random.Generator, shape: tuple[int, ...], num_classes: int
) -> list[Block]:
    height, width, channels = shape
    sizes = [_after_convolutions(size) for size in (height, width)]
    if min(sizes) < 1:
        raise HyperparameterError(
            "model",
            "lenet",
            f"cnn, mlp or linear for images of {height} x {width}, since lenet takes "
            "those of 13 x 13 or more",
        )
    return [
        chain(conv2d(rng, 5, channels, 6, "VALID"), RELU, MAX_POOL),
        chain(conv2d(rng, 5, 6, 16, "VALID"), RELU, MAX_POOL, FLATTEN),
        chain(dense(rng, math.prod(sizes) * 16, 120), RELU),
        chain(dense(rng, 120, 84), RELU),
        dense(rng, 84, num_classes),
    ]


def _after_convolutions(size: int) -> int:
    """Returns what two 5 x 5 convolutions without padding, each pooled, leave."""
    for _ in range(2):
        size = math.ceil((size - 4) / 2)
    return size
