"""Multinomial logistic regression, giving logits."""

from collections.abc import Sequence

from tasks.models import classifier, initializers, layers

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow as tf
import tensorflow_federated as tff


def build_linear_model(
    num_features: int, num_classes: int
) -> tff.learning.models.FunctionalModel:
    """Returns a linear classifier.

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
    zeros = (
        initializers.zeros(num_features, num_classes),
        initializers.zeros(num_classes),
    )
    return classifier.build(_linear, zeros, [num_features])


def _linear(weights: Sequence[tf.Tensor], x: tf.Tensor, training: bool) -> tf.Tensor:
    del training  # The same in both.
    kernel, bias = weights
    return layers.dense(x, kernel, bias)
