"""A small classifier of 28 x 28 images with spatial dropout that returns logits.

Hu et al., "Federated learning meets multi-objective optimization"
(https://arxiv.org/abs/2006.11489), use this model for Fashion-MNIST.
"""

import numpy as np

from tasks.models import classifier, layers
from tasks.models.blocks import FLATTEN, MAX_POOL, RELU, conv2d, dense, dropout
from tff_algos.models.block_model import BlockModel, chain

IMAGE_SHAPE = (28, 28, 1)

_DROPOUT_RATE = 0.5


def build_fashion_model(seed: int) -> BlockModel:
    """Returns a classifier of 28 x 28 images into 10 classes.

    Two 5 x 5 convolutions of 10 and 20 filters without padding, each followed by 2 x 2
    max pooling; half of the second's channels are dropped before its pooling. Dense
    50 with dropout. 21,840 weights.

    Args:
      seed: Seed of the initial weights: Glorot uniform kernels, zero biases.

    Returns:
      A model with `x` float32 `[None, 28, 28, 1]`, `y` int32 `[None]`, logits
      float32 `[None, 10]`, the metrics of `metrics.Classification`, and trainable
      weights kernel, bias, kernel, bias, ... Dropout, in training only, is a
      function of the weights and the batch.
    """
    rng = np.random.default_rng(seed)
    return classifier.build(
        [
            chain(conv2d(rng, 5, 1, 10, "VALID"), MAX_POOL, RELU),
            chain(
                conv2d(rng, 5, 10, 20, "VALID"),
                dropout(_DROPOUT_RATE, salt=1, function=layers.spatial_dropout),
                MAX_POOL,
                RELU,
                FLATTEN,
            ),
            chain(dense(rng, 4 * 4 * 20, 50), RELU, dropout(_DROPOUT_RATE, salt=2)),
            dense(rng, 50, 10),
        ],
        IMAGE_SHAPE,
    )
