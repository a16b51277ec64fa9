"""From the pure forward pass of a classifier to a `FunctionalModel`."""

from collections.abc import Callable, Sequence

import numpy as np

from tasks.models import initializers, metrics

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow as tf
import tensorflow_federated as tff

# `(weights, x [n, ...], training) -> logits [n, classes]`.
Forward = Callable[[Sequence[tf.Tensor], tf.Tensor, bool], tf.Tensor]


def build(
    forward: Forward,
    initial_weights: Sequence[np.ndarray],
    example_shape: Sequence[int],
) -> tff.learning.models.FunctionalModel:
    """Returns a classifier with the metrics of `metrics.Classification`.

    Args:
      forward: A pure function of TensorFlow operations that gives logits.
      initial_weights: float32 arrays, all of them trainable, in the order in which
        `forward` takes them.
      example_shape: The shape of one example.

    Returns:
      A model with `x` float32 `[None, *example_shape]` and `y` int32 `[None]`.
    """

    @tf.function
    def predict_on_batch(model_weights, x, training):
        trainable, _ = model_weights
        return forward(trainable, x, training)

    classification = metrics.Classification()
    return tff.learning.models.FunctionalModel(
        initial_weights=(tuple(initial_weights), ()),
        predict_on_batch_fn=predict_on_batch,
        loss_fn=classification.loss,
        metrics_fns=classification.metrics_fns(),
        input_spec=(
            tf.TensorSpec([None, *example_shape], tf.float32),
            tf.TensorSpec([None], tf.int32),
        ),
    )


def glorot_weights(
    kernel_shapes: Sequence[Sequence[int]], seed: int
) -> tuple[np.ndarray, ...]:
    """Returns kernel, bias, kernel, bias, ...: Glorot uniform kernels, zero biases."""
    rng = np.random.default_rng(seed)
    weights = []
    for shape in kernel_shapes:
        weights.append(initializers.glorot_uniform(rng, *shape))
        weights.append(initializers.zeros(shape[-1]))
    return tuple(weights)
