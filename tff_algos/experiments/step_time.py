"""How long a training step of a model takes."""

import time

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.clients.batching import Examples
from tff_algos.models import local_model

_NUM_STEPS = 3
# Seconds of a step whose noise need not be reduced.
_LONG = 1.0


def measure(model: tff.learning.models.FunctionalModel, batch: Examples) -> float:
    """Returns the least of a few times, seconds, of the gradient of the loss on a batch.

    A step that takes more than a second is timed once.

    Args:
      model: The model.
      batch: Features and labels.
    """

    @tf.function
    def step(initial, batch):
        local = local_model.create(model)
        weights = local_model.flatten(tff.learning.models.ModelWeights(*initial))
        return local.loss_gradients(weights, local.initial_metrics(), batch).gradients

    inputs = tf.nest.map_structure(tf.constant, (model.initial_weights, batch))
    _values(step(*inputs))  # Traces it.
    seconds = []
    for _ in range(_NUM_STEPS):
        start = time.perf_counter()
        _values(step(*inputs))
        seconds.append(time.perf_counter() - start)
        if seconds[0] > _LONG:
            break
    return min(seconds)


def _values(gradients: local_model.Tensors) -> None:
    """Waits until all are computed."""
    for gradient in gradients:
        tf.convert_to_tensor(gradient).numpy()
