"""A small classifier of 28 x 28 images with spatial dropout, giving logits.

The model that Hu et al., "Federated learning meets multi-objective optimization"
(https://arxiv.org/abs/2006.11489), train on Fashion-MNIST. Dropout of whole channels
is that of Tompson et al., "Efficient object localization using convolutional
networks", CVPR 2015 (https://arxiv.org/abs/1411.4280).
"""

from collections.abc import Sequence

from tasks.models import classifier, layers

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow as tf
import tensorflow_federated as tff

IMAGE_SHAPE = (28, 28, 1)

_KERNEL_SHAPES = ((5, 5, 1, 10), (5, 5, 10, 20), (4 * 4 * 20, 50), (50, 10))
_DROPOUT_RATE = 0.5


def build_fashion_model(seed: int) -> tff.learning.models.FunctionalModel:
    """Returns a classifier of 28 x 28 images into 10 classes.

    Two 5 x 5 convolutions of 10 and 20 filters without padding, each before a 2 x 2
    max pooling; half of the second's channels are dropped before its pooling. Dense
    50 with dropout. 21,840 weights.

    Args:
      seed: Decides the initial weights: Glorot uniform kernels, zero biases.

    Returns:
      A model with `x` float32 `[None, 28, 28, 1]`, `y` int32 `[None]`, logits
      float32 `[None, 10]`, the metrics of `metrics.Classification`, and trainable
      weights kernel, bias, kernel, bias, ... Dropout, in training only, is a
      function of the weights and the batch.
    """
    weights = classifier.glorot_weights(_KERNEL_SHAPES, seed)
    return classifier.build(_cnn, weights, IMAGE_SHAPE)


def _cnn(weights: Sequence[tf.Tensor], x: tf.Tensor, training: bool) -> tf.Tensor:
    filters_1, bias_1, filters_2, bias_2, *head = weights
    hidden_kernel, hidden_bias, kernel, bias = head
    if training:
        seed = layers.fingerprint(bias, x)
    x = tf.nn.relu(layers.max_pool2d(layers.conv2d(x, filters_1, bias_1, "VALID")))
    x = layers.conv2d(x, filters_2, bias_2, "VALID")
    if training:
        x = _spatial_dropout(x, _DROPOUT_RATE, seed, salt=1)
    x = layers.flatten(tf.nn.relu(layers.max_pool2d(x)))
    x = tf.nn.relu(layers.dense(x, hidden_kernel, hidden_bias))
    if training:
        x = layers.dropout(x, _DROPOUT_RATE, seed, salt=2)
    return layers.dense(x, kernel, bias)


def _spatial_dropout(
    x: tf.Tensor, rate: float, seed: tf.Tensor, salt: int
) -> tf.Tensor:
    """Drops whole channels of single images, scales the others by 1/(1-rate).

    Args:
      x: float32 `[n, height, width, channels]`.
      rate: In [0, 1).
      seed: As `layers.dropout` takes it.
      salt: The same.
    """
    channels = tf.ones_like(x[:, :1, :1, :])
    return x * layers.dropout(channels, rate, seed, salt)
