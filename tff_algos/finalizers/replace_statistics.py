"""Updates the server's statistics of examples, beside another finalizer's update."""

import collections
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.finite import all_finite


def build_statistics_finalizer(
    inner: tff.learning.templates.FinalizerProcess,
    statistics_type: tff.Type,
    is_statistic: Sequence[bool],
) -> tff.learning.templates.FinalizerProcess:
    """Builds a finalizer that replaces the server's statistics by the clients' mean.

    Args:
      inner: Updates the trainable weights and measures `num_rejected_rounds`. If it
        rejects a round, the statistics stay unchanged as well, as they do if their mean
        is not finite (in a round in which no client counts).
      statistics_type: The type of the statistics, a tuple.
      is_statistic: For each non-trainable weight, whether it is the next statistic.

    Returns:
      A process whose update is `<update=inner's, statistics=statistics_type>`. Its
      state, measurements and hyperparameters are inner's.
    """
    state_type, weights_type, update_type = inner.next.type_signature.parameter
    update_type = tff.to_type(
        collections.OrderedDict(update=update_type.member, statistics=statistics_type)
    )

    @tff.tensorflow.computation(weights_type.member, statistics_type, np.int32)
    @tf.function
    def replace(weights, statistics, num_rejected_rounds):
        means = iter(statistics)
        stays = (num_rejected_rounds > 0) | tf.logical_not(all_finite(statistics))
        old = tf.nest.flatten(weights.non_trainable)
        new = [
            tf.where(stays, weight, tf.cast(next(means), weight.dtype))
            if is_mean
            else weight
            for weight, is_mean in zip(old, is_statistic, strict=True)
        ]
        return tff.learning.models.ModelWeights(
            weights.trainable, tf.nest.pack_sequence_as(weights.non_trainable, new)
        )

    @tff.federated_computation(
        state_type, weights_type, tff.FederatedType(update_type, tff.SERVER)
    )
    def next_fn(state, weights, update):
        output = inner.next(state, weights, update["update"])
        weights = tff.federated_map(
            replace,
            (
                output.result,
                update["statistics"],
                output.measurements["num_rejected_rounds"],
            ),
        )
        return tff.templates.MeasuredProcessOutput(
            output.state, weights, output.measurements
        )

    return tff.learning.templates.FinalizerProcess(
        inner.initialize,
        next_fn,
        get_hparams_fn=inner.get_hparams,
        set_hparams_fn=inner.set_hparams,
    )
