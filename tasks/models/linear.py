"""Multinomial logistic regression, giving logits."""

from tasks.models import classifier, initializers, layers
from tff_algos.block_model import BlockModel, layer


def build_linear_model(num_features: int, num_classes: int) -> BlockModel:
    """Returns a linear classifier, a single block.

    Args:
      num_features: Features of an example, at least 1.
      num_classes: Number of classes, at least 1.

    Returns:
      A model with `x` float32 `[None, num_features]`, `y` int32 `[None]`, logits
      float32 `[None, num_classes]`, the metrics of `metrics.Classification`, and
      trainable weights kernel, bias, all zero at first: the loss is convex.

    Raises:
      ValueError: If a number is not positive.
    """
    if num_features < 1:
        raise ValueError(f"Expected a positive num_features, found {num_features}.")
    if num_classes < 1:
        raise ValueError(f"Expected a positive num_classes, found {num_classes}.")
    kernel = initializers.zeros(num_features, num_classes)
    logits = layer(layers.dense, kernel, initializers.zeros(num_classes))
    return classifier.build([logits], [num_features])
