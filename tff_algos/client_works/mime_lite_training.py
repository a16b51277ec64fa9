"""MimeLite's client work: local steps with the server's frozen optimizer state."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators import MeanFactory
from tff_algos.client_works import client_report
from tff_algos.client_works.full_gradient import mean_gradient
from tff_algos.client_works.local_training import (
    check_learning_rate_decay,
    decay_learning_rate,
    train,
)
from tff_algos.client_works.round_process import measurements
from tff_algos.clients import attacks
from tff_algos.clients.client_data import ClientDataFields
from tff_algos.finite import all_finite, zero_unless
from tff_algos.models import local_model
from tff_algos.models.local_model import ModelOrFn
from tff_algos.optimizers import in_weights_dtype


class _FrozenState(tff.learning.optimizers.Optimizer):
    """An optimizer whose steps never change its state."""

    def __init__(self, optimizer: tff.learning.optimizers.Optimizer):
        self._optimizer = optimizer

    def initialize(self, specs):
        return self._optimizer.initialize(specs)

    def next(self, state, weights, gradients):
        _, new_weights = self._optimizer.next(state, weights, gradients)
        return state, new_weights


class MimeLiteState(NamedTuple):
    """`optimizer` is the base optimizer's state, `round_num` an int32 []."""

    optimizer: object
    round_num: object


def build_mime_lite_client_work(
    model: ModelOrFn,
    base_optimizer: tff.learning.optimizers.Optimizer,
    *,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    client_learning_rate_decay: float = 1.0,
    full_gradient_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
    with_full_pass: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds MimeLite's client work.

    In a round, every client trains with the server's state of `base_optimizer`,
    frozen, and reports its full gradient at the server model along with its delta.
    The server then updates the state once, with the mean full gradient. The state is
    unchanged if that mean is not finite, as when every client is excluded, or if the
    new state is not.

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      base_optimizer: The optimizer of the local steps, whose state is shared.
      client_weighting: Whether clients are weighted by the examples they processed or
        uniformly, in both aggregations.
      client_learning_rate_decay: The client learning rate in round t is its initial
        value times this to the power t; in (0, 1].
      full_gradient_aggregator: Aggregates the full gradients; the weighted mean
        by default.
      metrics_aggregator: As in
        `tff.learning.algorithms.build_weighted_mime_lite`.
      with_num_examples: As in `build_local_training_client_work`, in both aggregations.
      with_full_pass: Whether clients' data include `full_pass`, the examples of the
        full gradient; without it, these are the round's batches. See `client_data`.

    Returns:
      A process typed as `build_local_training_client_work`'s, whose state is
      `<MimeLiteState, S>@SERVER` with the state S of the full gradients' aggregator.

    Raises:
      HyperparameterError: If `client_learning_rate_decay` is out of range, or the
        optimizer has no learning rate that could decay.
    """
    check_learning_rate_decay(client_learning_rate_decay, base_optimizer)
    base_optimizer = in_weights_dtype(base_optimizer)
    weights_type = local_model.weights_type(model)
    fields = ClientDataFields(num_examples=with_num_examples, full_pass=with_full_pass)
    data_type = fields.type(model)
    aggregate_metrics = local_model.build_metrics_aggregation(model, metrics_aggregator)
    gradient_aggregator = (full_gradient_aggregator or MeanFactory()).create(
        weights_type.trainable, tff.TensorType(np.float32)
    )

    @tff.tensorflow.computation
    def initial_state():
        specs = tff.types.type_to_tf_tensor_specs(weights_type.trainable)
        flat_specs = tuple(tf.nest.flatten(specs))
        return MimeLiteState(base_optimizer.initialize(flat_specs), tf.constant(0))

    state_type = initial_state.type_signature.result

    @tff.federated_computation
    def initialize():
        return tff.federated_zip(
            (
                tff.federated_eval(initial_state, tff.SERVER),
                gradient_aggregator.initialize(),
            )
        )

    @tff.tensorflow.computation(state_type, weights_type, data_type)
    def client_update(state, server_weights, data):
        view = local_model.create(model)

        @tf.function
        def update(state, server_weights, data):
            own = fields.read(data)
            initial = local_model.flatten(server_weights)
            with view.uncounted():
                full = mean_gradient(view, initial, own.full_pass)
            optimizer_state = decay_learning_rate(
                base_optimizer,
                state.optimizer,
                client_learning_rate_decay,
                state.round_num,
            )
            final = train(
                view,
                _FrozenState(base_optimizer),
                initial,
                optimizer_state,
                own.batches,
            )
            delta = tf.nest.map_structure(
                tf.subtract, initial.trainable, final.weights.trainable
            )
            report = client_report.report(
                view,
                server_weights,
                attacks.sent_update(delta, own.batches),
                client_weighting,
                final.num_examples,
                final.metrics,
                full.gradient_sum,
                non_trainable=final.weights.non_trainable,
            ).with_num_examples(own.num_examples)
            gradient = zero_unless(report.counts_in, full.gradient_sum)
            gradient = tf.nest.pack_sequence_as(server_weights.trainable, gradient)
            return report.result, report.metrics, report.counts, gradient

        return update(state, server_weights, data)

    @tff.tensorflow.computation(state_type, weights_type.trainable)
    def advance_state(state, gradient):
        gradient = tuple(tf.nest.flatten(gradient))
        weights = tuple(map(tf.zeros_like, gradient))
        advanced, _ = base_optimizer.next(state.optimizer, weights, gradient)
        # Of the new state too: the square of a finite gradient may be infinite.
        finite = all_finite((gradient, advanced))
        optimizer_state = tf.nest.map_structure(
            lambda new, old: tf.where(finite, new, old), advanced, state.optimizer
        )
        return MimeLiteState(optimizer_state, state.round_num + 1)

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(weights_type, tff.CLIENTS),
        tff.FederatedType(data_type, tff.CLIENTS),
    )
    def next_fn(state, weights, client_data):
        mime_state, aggregator_state = state
        result, metrics, counts, gradients = tff.federated_map(
            client_update, (tff.federated_broadcast(mime_state), weights, client_data)
        )
        aggregated = gradient_aggregator.next(
            aggregator_state, gradients, result.update_weight
        )
        new_state = tff.federated_map(advance_state, (mime_state, aggregated.result))
        return tff.templates.MeasuredProcessOutput(
            tff.federated_zip((new_state, aggregated.state)),
            result,
            measurements(aggregate_metrics(metrics), counts),
        )

    return tff.learning.templates.ClientWorkProcess(initialize, next_fn)
