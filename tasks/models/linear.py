"""Multinomial logistic regression, returning logits."""

import numpy as np

from tasks.models import classifier, initializers, layers
from tff_algos.models.block_model import BlockModel, layer


def build_linear_model(
    num_features: int, num_classes: int, seed: int | None = None
) -> BlockModel:
    """Returns a linear classifier, a single block.

    Args:
      num_features: Features of an example, at least 1.
      num_classes: Number of classes, at least 1.
      seed: Seed of the initial weights, uniform in +-1 / sqrt(num_features) as in
        PyTorch; None for zeros, which are possible because the loss is convex.

    Returns:
      A model with `x` float32 `[None, num_features]`, `y` int32 `[None]`, logits
      float32 `[None, num_classes]`, the metrics of `metrics.Classification`, and
      trainable weights kernel, bias.

    Raises:
      ValueError: If a number is not positive.
    """
    if num_features < 1:
        raise ValueError(f"Expected a positive num_features, found {num_features}.")
    if num_classes < 1:
        raise ValueError(f"Expected a positive num_classes, found {num_classes}.")
    shapes = (num_features, num_classes), (num_classes,)
    if seed is None:
        weights = [initializers.zeros(*shape) for shape in shapes]
    else:
        rng, limit = np.random.default_rng(seed), num_features**-0.5
        weights = [initializers.uniform(rng, *shape, limit=limit) for shape in shapes]
    return classifier.build([layer(layers.dense, *weights)], [num_features])
