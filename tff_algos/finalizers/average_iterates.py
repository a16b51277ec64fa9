"""Keeps the mean of the models of all rounds, without affecting training."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


class AverageState(NamedTuple):
    """The state of an averaging finalizer.

    Attributes:
      inner: The state of the finalizer that updates the model.
      average: `tff.learning.models.ModelWeights`, the mean over the rounds.
      num_rounds: The number of rounds averaged, int32 [].
    """

    inner: object
    average: object
    num_rounds: object


def build_average_iterates_finalizer(
    inner: tff.learning.templates.FinalizerProcess,
    initial_weights: tff.Computation,
) -> tff.learning.templates.FinalizerProcess:
    """Builds a finalizer that averages the models that `inner` returns.

    The learning process continues from the latest model; the mean is in the state.
    Rounds that it rejects are not averaged.

    Args:
      inner: The finalizer that updates the model and measures `num_rejected_rounds`.
      initial_weights: `( -> ModelWeights)`, the mean before the first round.

    Returns:
      A process whose state is an `AverageState`; result, measurements and
      hyperparameters are those of `inner`.
    """
    weights_type = initial_weights.type_signature.result
    update_type = inner.next.type_signature.parameter[2]

    @tff.tensorflow.computation
    def no_rounds():
        return tf.constant(0)

    @tff.federated_computation
    def initialize():
        return tff.federated_zip(
            AverageState(
                inner.initialize(),
                tff.federated_eval(initial_weights, tff.SERVER),
                tff.federated_eval(no_rounds, tff.SERVER),
            )
        )

    @tff.tensorflow.computation(weights_type, np.int32, weights_type, np.int32)
    @tf.function
    def add(average, num_rounds, weights, num_rejected_rounds):
        # A rejected round has not produced a model.
        made = tf.cast(tf.equal(num_rejected_rounds, 0), tf.int32)
        count = num_rounds + made

        def moved(old, new):
            if not new.dtype.is_floating:
                return new
            share = tf.cast(made, new.dtype) / tf.cast(tf.maximum(count, 1), new.dtype)
            return old + (new - old) * share

        return tf.nest.map_structure(moved, average, weights), count

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(weights_type, tff.SERVER),
        update_type,
    )
    def next_fn(state, weights, update):
        output = inner.next(state.inner, weights, update)
        average, num_rounds = tff.federated_map(
            add,
            (
                state.average,
                state.num_rounds,
                output.result,
                output.measurements["num_rejected_rounds"],
            ),
        )
        return tff.templates.MeasuredProcessOutput(
            tff.federated_zip(AverageState(output.state, average, num_rounds)),
            output.result,
            output.measurements,
        )

    state_type = initialize.type_signature.result.member

    @tff.tensorflow.computation(state_type)
    def get_hparams(state):
        return inner.get_hparams(state.inner)

    @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
    def set_hparams(state, hparams):
        return state._replace(inner=inner.set_hparams(state.inner, hparams))

    return tff.learning.templates.FinalizerProcess(
        initialize, next_fn, get_hparams_fn=get_hparams, set_hparams_fn=set_hparams
    )
