"""The client work of FedSGD: a client's full-batch gradient at the server's model."""

import attrs
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import client_report
from tff_algos.client_works.round_process import measurements
from tff_algos.clients import attacks
from tff_algos.finite import at_least_float32
from tff_algos.models import local_model
from tff_algos.models.local_model import LocalModel, ModelOrFn, Tensors, Weights


@attrs.frozen
class GradientState:
    """State of the sum over a client's batches."""

    gradient_sum: Tensors
    non_trainable: Tensors
    metrics: object
    num_examples: tf.Tensor  # int64 []


def mean_gradient(
    model: LocalModel, weights: Weights, dataset: tf.data.Dataset
) -> GradientState:
    """Returns the example-weighted mean of the batches' gradients at `weights`.

    The mean is in `gradient_sum`; it is zero for an empty dataset.
    """

    def add_batch(state: GradientState, batch) -> GradientState:
        here = attrs.evolve(weights, non_trainable=state.non_trainable)
        result = model.loss_gradients(here, state.metrics, batch)
        return GradientState(
            tuple(
                total
                + at_least_float32(gradient) * tf.cast(result.num_examples, total.dtype)
                for total, gradient in zip(
                    state.gradient_sum, result.gradients, strict=True
                )
            ),
            result.non_trainable,
            result.metrics,
            state.num_examples + result.num_examples,
        )

    # Sums over many examples overflow in half precision.
    zero = tuple(
        at_least_float32(tf.zeros_like(weight)) for weight in weights.trainable
    )
    total = dataset.reduce(
        GradientState(
            zero,
            weights.non_trainable,
            model.initial_metrics(),
            tf.constant(0, tf.int64),
        ),
        add_batch,
    )
    mean = tuple(
        tf.cast(
            tf.math.divide_no_nan(g, tf.cast(total.num_examples, g.dtype)), weight.dtype
        )
        for g, weight in zip(total.gradient_sum, weights.trainable, strict=True)
    )
    return attrs.evolve(total, gradient_sum=mean)


def build_full_gradient_client_work(
    model: ModelOrFn,
    *,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds the client work that reports the gradient of the client's mean loss.

    The process is stateless. Batching only bounds the memory. It changes the result
    only if a batch's loss is not the mean of its examples' own losses, as with batch
    normalization or sequences. Each example should appear once. Clients without
    examples and clients whose gradient is not finite are excluded and counted.

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      client_weighting: Whether clients are weighted by their examples or uniformly.
      metrics_aggregator: As in `tff.learning.algorithms.build_fed_sgd`.

    Returns:
      A process whose `next` maps `<<>@SERVER, {ModelWeights}@CLIENTS,
      {B*}@CLIENTS>` to client results of type `<update=gradient like the
      trainable weights, update_weight=float32>@CLIENTS` and the measurements of
      `build_local_training_client_work`.
    """
    weights_type = local_model.weights_type(model)
    data_type = local_model.data_type(model)
    aggregate_metrics = local_model.build_metrics_aggregation(model, metrics_aggregator)

    @tff.federated_computation
    def initialize():
        return tff.federated_value((), tff.SERVER)

    @tff.tensorflow.computation(weights_type, data_type)
    def client_gradient(server_weights, dataset):
        view = local_model.create(model)

        @tf.function
        def gradient(server_weights, dataset):
            state = mean_gradient(view, local_model.flatten(server_weights), dataset)
            report = client_report.report(
                view,
                server_weights,
                attacks.sent_update(state.gradient_sum, dataset),
                client_weighting,
                state.num_examples,
                state.metrics,
                non_trainable=state.non_trainable,
            )
            return report.result, report.metrics, report.counts

        return gradient(server_weights, dataset)

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(weights_type, tff.CLIENTS),
        tff.FederatedType(data_type, tff.CLIENTS),
    )
    def next_fn(state, weights, client_data):
        result, metrics, counts = tff.federated_map(
            client_gradient, (weights, client_data)
        )
        return tff.templates.MeasuredProcessOutput(
            state, result, measurements(aggregate_metrics(metrics), counts)
        )

    return tff.learning.templates.ClientWorkProcess(initialize, next_fn)
