"""How long a training step of a model takes."""

import functools
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context as eager_context

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
    # Keras models that TFF has converted work only in graphs.
    with tf.Graph().as_default():
        # Constants would be folded into the gradients.
        weights = tf.nest.map_structure(
            lambda value: tf.identity(tf.Variable(value)), model.initial_weights
        )
        examples = tf.nest.map_structure(
            lambda value: tf.compat.v1.placeholder(value.dtype, value.shape), batch
        )
        gradients = tf.function(functools.partial(_gradients, model))(weights, examples)
        # Without a use of the values, TensorFlow would prune the work.
        used = [tf.reshape(tf.convert_to_tensor(each), [-1])[:1] for each in gradients]
        # With the threads and the GPUs that this process has chosen.
        config = eager_context.context().config
        with tf.compat.v1.Session(config=config) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            step = session.make_callable(used, tf.nest.flatten(examples))
            return _least_seconds(lambda: step(*tf.nest.flatten(batch)))


def _gradients(
    model: tff.learning.models.FunctionalModel, initial: Any, batch: Examples
) -> local_model.Tensors:
    local = local_model.create(model)
    weights = local_model.flatten(tff.learning.models.ModelWeights(*initial))
    return local.loss_gradients(weights, local.initial_metrics(), batch).gradients


def _least_seconds(step: Callable[[], Any]) -> float:
    step()  # Compiles it.
    seconds = []
    for _ in range(_NUM_STEPS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
        if seconds[0] > _LONG:
            break
    return min(seconds)
