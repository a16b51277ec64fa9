"""Training on pooled examples, with an optimizer state that persists across rounds."""

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import client_report
from tff_algos.client_works.local_training import train
from tff_algos.client_works.round_process import measurements
from tff_algos.models import local_model
from tff_algos.models.local_model import ModelOrFn
from tff_algos.optimizers import in_weights_dtype


def build_pooled_training_client_work(
    model: ModelOrFn,
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds the work of a single client, the data center, that holds all examples.

    Like `build_local_training_client_work`, except that the process's state is the
    optimizer's state, which persists across rounds; a round that would leave it not
    finite is excluded as well.

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      optimizer: The optimizer.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.

    Returns:
      A process whose `next` fails with `InvalidArgumentError` unless it is given
      exactly one client.
    """
    weights_type = local_model.weights_type(model)
    data_type = local_model.data_type(model)
    aggregate_metrics = local_model.build_metrics_aggregation(model, metrics_aggregator)

    @tff.tensorflow.computation
    def initial_state():
        specs = tff.types.type_to_tf_tensor_specs(weights_type.trainable)
        return in_weights_dtype(optimizer).initialize(tuple(tf.nest.flatten(specs)))

    state_type = initial_state.type_signature.result

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(initial_state, tff.SERVER)

    @tff.tensorflow.computation(state_type, weights_type, data_type)
    def client_update(optimizer_state, server_weights, dataset):
        view = local_model.create(model)

        @tf.function
        def update(optimizer_state, server_weights, dataset):
            initial = local_model.flatten(server_weights)
            final = train(view, optimizer, initial, optimizer_state, dataset)
            delta = tf.nest.map_structure(
                tf.subtract, initial.trainable, final.weights.trainable
            )
            report = client_report.report(
                view,
                server_weights,
                delta,
                tff.learning.ClientWeighting.NUM_EXAMPLES,
                final.num_examples,
                final.metrics,
                final.optimizer_state,
                non_trainable=final.weights.non_trainable,
            )
            new_optimizer_state = tf.nest.map_structure(
                lambda new, old: tf.where(report.counts_in, new, old),
                final.optimizer_state,
                optimizer_state,
            )
            return report.result, report.metrics, report.counts, new_optimizer_state

        return update(optimizer_state, server_weights, dataset)

    @tff.tensorflow.computation
    def one():
        return tf.constant(1)

    @tff.tensorflow.computation(state_type, tf.int32.as_numpy_dtype)
    def only_state(state, num_clients):
        check = tf.debugging.assert_equal(
            num_clients, 1, "centralized training takes one client, the pooled examples"
        )
        with tf.control_dependencies([check]):
            return tf.nest.map_structure(tf.identity, state)

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(weights_type, tff.CLIENTS),
        tff.FederatedType(data_type, tff.CLIENTS),
    )
    def next_fn(state, weights, client_data):
        result, metrics, counts, new_state = tff.federated_map(
            client_update, (tff.federated_broadcast(state), weights, client_data)
        )
        num_clients = tff.federated_sum(tff.federated_eval(one, tff.CLIENTS))
        return tff.templates.MeasuredProcessOutput(
            tff.federated_map(only_state, (tff.federated_sum(new_state), num_clients)),
            result,
            measurements(aggregate_metrics(metrics), counts),
        )

    return tff.learning.templates.ClientWorkProcess(initialize, next_fn)
