"""Classifiers of 28 x 28 images from TFF's EMNIST baselines, returning logits.

`cnn` and `2nn` are the models of McMahan et al., "Communication-efficient
learning of deep networks from decentralized data", AISTATS 2017
(https://arxiv.org/abs/1602.05629); `cnn_dropout` is the one of Reddi et al.,
"Adaptive federated optimization", ICLR 2021 (https://arxiv.org/abs/2003.00295).
They are the same functions as `tff.simulation.baselines.emnist`, except for the final
softmax, which is part of the loss here.

`cnn_dense_dropout` is `cnn` with dropout after its dense layer, the model of Yao et
al., "Federated learning with unbiased gradient aggregation and controllable meta
updating" (https://arxiv.org/abs/1910.08234). They do not report the rate; here it is
0.5.
"""

from typing import Literal, get_args

import numpy as np

from tasks.models import classifier
from tasks.models.blocks import FLATTEN, MAX_POOL, RELU, conv2d, dense, dropout
from tff_algos.models.block_model import Block, BlockModel, chain

ModelId = Literal["cnn", "cnn_dropout", "2nn", "cnn_dense_dropout"]

IMAGE_SHAPE = (28, 28, 1)


class UnknownModelError(ValueError):
    """There is no model of that name; the message lists the models."""


def build_emnist_model(model_id: ModelId, only_digits: bool, seed: int) -> BlockModel:
    """Returns a classifier of 28 x 28 images.

    Args:
      model_id: "cnn" (two 5 x 5 convolutions, dense 512; 1,663,370 weights for
        digits, 1,690,046 otherwise), "cnn_dense_dropout" (the same, with dropout
        after the dense layer), "cnn_dropout" (two 3 x 3 convolutions, dense 128,
        dropout; 1,199,882 or 1,206,590) or "2nn" (two dense layers of 200; 199,210
        or 209,662).
      only_digits: 10 classes instead of 62.
      seed: Seed of the initial weights: Glorot uniform kernels, zero biases.

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
    rng = np.random.default_rng(seed)
    blocks = _build_blocks(model_id, rng, num_classes=10 if only_digits else 62)
    return classifier.build(blocks, IMAGE_SHAPE)


def _build_blocks(
    model_id: ModelId, rng: np.random.Generator, num_classes: int
) -> list[Block]:
    match model_id:
        case "cnn":
            return _cnn(rng, num_classes, chain())
        case "cnn_dense_dropout":
            return _cnn(rng, num_classes, dropout(0.5, salt=1))
        case "cnn_dropout":
            return _cnn_dropout(rng, num_classes)
        case "2nn":
            return _two_hidden_layers(rng, num_classes)


def _cnn(rng: np.random.Generator, num_classes: int, last_hidden: Block) -> list[Block]:
    return [
        chain(conv2d(rng, 5, 1, 32, "SAME"), RELU, MAX_POOL),
        chain(conv2d(rng, 5, 32, 64, "SAME"), RELU, MAX_POOL, FLATTEN),
        chain(dense(rng, 7 * 7 * 64, 512), RELU, last_hidden),
        dense(rng, 512, num_classes),
    ]


def _cnn_dropout(rng: np.random.Generator, num_classes: int) -> list[Block]:
    return [
        chain(conv2d(rng, 3, 1, 32, "VALID"), RELU),
        chain(
            conv2d(rng, 3, 32, 64, "VALID"),
            RELU,
            MAX_POOL,
            FLATTEN,
            dropout(0.25, salt=1),
        ),
        chain(dense(rng, 12 * 12 * 64, 128), RELU, dropout(0.5, salt=2)),
        dense(rng, 128, num_classes),
    ]


def _two_hidden_layers(rng: np.random.Generator, num_classes: int) -> list[Block]:
    return [
        chain(FLATTEN, dense(rng, 28 * 28, 200), RELU),
        chain(dense(rng, 200, 200), RELU),
        dense(rng, 200, num_classes),
    ]
