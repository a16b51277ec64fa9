"""A round of FedAvg with a Keras model, in-process."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tf_keras

import tff_algos
from tff_algos import execution


def round_of_fed_avg(
    build: Callable[[], tf_keras.Model],
    clients: Sequence[tuple[np.ndarray, np.ndarray]],
) -> list[list[np.ndarray]]:
    """Returns the trainable weights before and after a round.

    Args:
      build: Builds a model of logits.
      clients: Inputs `[n, ...]` and labels int32 `[n]` of each client, used in batches
        of two.
    """
    x, y = clients[0]
    input_spec = (
        tf.TensorSpec([None, *x.shape[1:]], x.dtype),
        tf.TensorSpec([None], y.dtype),
    )

    def model_fn():
        return tff.learning.models.from_keras_model(
            build(),
            loss=tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=input_spec,
        )

    datasets = [tf.data.Dataset.from_tensor_slices(each).batch(2) for each in clients]
    with execution.in_process_context():
        process = tff_algos.build_fed_avg(
            model_fn, tff.learning.optimizers.build_sgdm(0.5)
        )
        before = process.initialize()
        after = process.next(before, datasets).state
        return [process.get_model_weights(state).trainable for state in (before, after)]
