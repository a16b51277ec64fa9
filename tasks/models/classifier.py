"""Builds a model from the blocks of a classifier."""

from collections.abc import Sequence

import tensorflow as tf

from tasks.models import metrics
from tasks.models.blocks import dropout_seed
from tff_algos.models.block_model import Block, BlockModel


def build(blocks: Sequence[Block], example_shape: Sequence[int]) -> BlockModel:
    """Returns a classifier with the metrics of `metrics.Classification`.

    Args:
      blocks: The first takes float32 `[n, *example_shape]`; the last returns logits
        `[n, classes]`.
      example_shape: The shape of one example.

    Returns:
      A model with `x` float32 `[None, *example_shape]` and `y` int32 `[None]`.
      Dropout, in training only, is a function of the weights and the batch.
    """
    classification = metrics.Classification()
    return BlockModel(
        blocks,
        loss_fn=classification.loss,
        metrics_fns=classification.metrics_fns(),
        input_spec=(
            tf.TensorSpec([None, *example_shape], tf.float32),
            tf.TensorSpec([None], tf.int32),
        ),
        dropout_seed_fn=dropout_seed(blocks),
    )
