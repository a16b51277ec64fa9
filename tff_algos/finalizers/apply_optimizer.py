"""A server optimizer's step, with the measurements that all processes return."""

import collections

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.finite import global_norm
from tff_algos.optimizers import in_weights_dtype


def _reject_non_finite(state, update):
    del state
    norm = global_norm(update)
    reject = tf.logical_not(tf.math.is_finite(norm))
    measurements = collections.OrderedDict(
        num_rejected_rounds=tf.cast(reject, tf.int32),
        update_norm=tf.cast(norm, tf.float32),
    )
    return reject, measurements


def build_apply_optimizer_finalizer(
    server_optimizer: tff.learning.optimizers.Optimizer, weights_type: tff.Type
) -> tff.learning.templates.FinalizerProcess:
    """Builds the finalizer that treats the aggregate as a gradient.

    A round whose aggregate is not finite (every client was excluded, or an overflow)
    is rejected: weights and optimizer state stay unchanged.

    Args:
      server_optimizer: The server optimizer.
      weights_type: The type of `tff.learning.models.ModelWeights`.

    Returns:
      A process with the optimizer's state, whose measurements are
      `num_rejected_rounds` (int32, 0 or 1) and `update_norm` (float32, the L2
      norm of the aggregate over all trainable scalars).
    """
    return tff.learning.templates.build_apply_optimizer_finalizer(
        in_weights_dtype(server_optimizer),
        weights_type,
        should_reject_update=_reject_non_finite,
    )
