"""Local training with client weights that grow with the clients' losses.

The client work of agnostic federated learning: Mohri, Sivek, Suresh, "Agnostic
Federated Learning", 2019, arXiv 1902.00146.
"""

from typing import Annotated, Literal, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import local_training, round_process
from tff_algos.clients import attacks
from tff_algos.clients.client_data import ClientDataFields
from tff_algos.finite import zero_unless
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import local_model
from tff_algos.models.local_model import ModelOrFn
from tff_algos.solvers import box_simplex

AflMode = Literal["epochs", "batch"]
AflLoss = Literal["batches", "examples"]


class AgnosticState(NamedTuple):
    """The state of agnostic training.

    Attributes:
      round_num: int32 [].
      mixture: lambda, float64 [N]: the weights of all clients; they sum to one.
    """

    round_num: object
    mixture: object


def _summing_losses(afl_loss: AflLoss) -> local_training.StepGradients:
    """Returns plain gradients; their carry sums the losses and the losses' weights."""

    def gradients(model, state, batch):
        result, (total, count) = local_training.plain_gradients(model, state, batch)
        size = tf.cast(result.num_examples, tf.float64)
        weight = size if afl_loss == "examples" else tf.ones_like(size)
        loss = tf.cast(result.loss, tf.float64)
        return result, (total + weight * loss, count + weight)

    return gradients


def ascend(
    mixture: tf.Tensor, losses: tf.Tensor, takes_part: tf.Tensor, rate: float
) -> tf.Tensor:
    """Moves weight toward clients with large losses.

    Args:
      mixture: lambda, float64 [N], on the simplex.
      losses: float64 [N]; ignored for clients that do not take part.
      takes_part: bool [N], whether a client reports a loss. Clients that do not take
        part keep their weight; the total weight of the others is unchanged.
      rate: gamma_lambda, per loss.

    Returns:
      The Euclidean projection of lambda + gamma_lambda * F onto these weights.
    """
    zeros = tf.zeros_like(mixture)
    own = tf.where(takes_part, mixture, zeros)
    total = tf.reduce_sum(own)
    raised = tf.where(takes_part, mixture + rate * losses, zeros)
    upper = tf.where(takes_part, total, zeros)
    moved = box_simplex.project(raised, zeros, upper, total)
    return tf.where(takes_part, moved, mixture)


@checked
def build_agnostic_training_client_work(
    model: ModelOrFn,
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    num_clients: Annotated[int, hparam(low=1, symbol="N")],
    mixture_learning_rate: Annotated[float, hparam(low=0, symbol="gamma_lambda")],
    afl_mode: Annotated[AflMode, hparam()] = "epochs",
    afl_loss: Annotated[AflLoss, hparam()] = "batches",
    client_learning_rate_decay: float = 1.0,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds local training with client weights lambda that grow with the losses.

    A client's update weight is its lambda before the round. Its loss is the mean of
    the losses before each of its steps; with one local step this is the loss of the
    server's model. In the paper a client computes the gradient of a single batch; in Hu
    et al. (arXiv 2006.11489) it trains for an epoch and averages its batch losses.
    Losses reach the server as a sum of one-hot vectors of length N, so the server need
    not see individual updates. Clients that are excluded, as in
    `build_local_training_client_work` or because their loss is not finite, keep their
    lambda, and so do clients outside the cohort (`ascend`).

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      optimizer: The client optimizer.
      num_clients: The number of all clients.
      mixture_learning_rate: Learning rate of lambda, per loss.
      afl_mode: "epochs": a client trains on all of its batches; "batch": it takes one
        step, on its first batch.
      afl_loss: Whether a client's loss is the mean over its "batches" of their mean
        losses or the mean over its "examples"; they differ if batch sizes do.
      client_learning_rate_decay: As in `build_local_training_client_work`.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_local_training_client_work`; here only statistics
        are weighted by examples.

    Returns:
      A process whose `next` maps `<AgnosticState@SERVER, {ModelWeights}@CLIENTS,
      {<examples=B*, client_index=int32*>}@CLIENTS>` to client results of type
      `<update=trainable weights, update_weight=float32>@CLIENTS` and the measurements
      of `build_local_training_client_work`, plus `lambda_min`, `lambda_max`, `max_loss`
      (float32; NaN if no client counts) and `total_weight` (float32, the sum of lambda
      over the clients that report; 0 if none of them weighs anything, and then the mean
      of their updates is NaN). `client_index` holds one element, the client's index in
      [0, N); a round fails if one is out of range, or two clients have the same.

    Raises:
      HyperparameterError: If an argument is invalid.
    """
    weights_type = local_model.weights_type(model)
    fields = ClientDataFields(client_index=True, num_examples=with_num_examples)
    data_type = fields.type(model)
    aggregate_metrics = local_model.build_metrics_aggregation(model, metrics_aggregator)
    local_update = local_training.build_local_update(
        optimizer, client_learning_rate_decay=client_learning_rate_decay
    )

    @tff.tensorflow.computation
    def first_state():
        share = tf.constant(1 / num_clients, tf.float64)
        return AgnosticState(tf.constant(0), tf.fill([num_clients], share))

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(first_state, tff.SERVER)

    state_type = first_state.type_signature.result

    @tff.tensorflow.computation(state_type, weights_type, data_type)
    def client_work(state, server_weights, data):
        view = local_model.create(model)

        @tf.function
        def work(state, server_weights, data):
            own_data = fields.read(data)
            index, batches = own_data.client_index, own_data.batches
            if afl_mode == "batch":
                batches = batches.take(1)
            nothing = (tf.constant(0.0, tf.float64), tf.constant(0.0, tf.float64))
            update = local_update(
                view,
                state.round_num,
                server_weights,
                batches,
                _summing_losses(afl_loss),
                nothing,
            )
            loss = tf.math.divide_no_nan(*update.final.carry)
            loss = attacks.reported_loss(loss, batches)
            uniform = tff.learning.ClientWeighting.UNIFORM
            report = update.report(view, server_weights, uniform, loss)
            # All zeros for an index out of range, which the server then misses.
            own = tf.one_hot(index, num_clients, dtype=tf.float64)
            weight = tf.cast(tf.reduce_sum(own * state.mixture), tf.float32)
            report = report.with_weight(weight).with_num_examples(own_data.num_examples)
            loss = zero_unless(report.counts_in, loss)
            shown = tf.cast(loss, tf.float32)
            return (
                report.result,
                report.metrics,
                report.counts,
                own * loss,
                own * tf.cast(report.counts_in, tf.float64),
                tf.cast(report.counts_in, tf.float64),
                tf.where(report.counts_in, shown, shown.dtype.min),
            )

        return work(state, server_weights, data)

    @tff.tensorflow.computation(
        state_type,
        (np.float64, [num_clients]),
        (np.float64, [num_clients]),
        np.float64,
    )
    @tf.function
    def next_state(state, losses, counts, num_reports):
        expected = (
            f"Expected each client_index in [0, {num_clients}) and once in a round"
        )
        tf.debugging.Assert(
            tf.reduce_all(counts <= 1) & tf.equal(tf.reduce_sum(counts), num_reports),
            [expected, "found reports by index", counts, "of", num_reports],
        )
        mean_losses = tf.math.divide_no_nan(losses, counts)
        mixture = ascend(state.mixture, mean_losses, counts > 0, mixture_learning_rate)
        return AgnosticState(state.round_num + 1, mixture)

    @tff.tensorflow.computation(state_type)
    def extremes(state):
        return tuple(
            tf.cast(reduce(state.mixture), tf.float32)
            for reduce in (tf.reduce_min, tf.reduce_max)
        )

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(weights_type, tff.CLIENTS),
        tff.FederatedType(data_type, tff.CLIENTS),
    )
    def next_fn(state, weights, client_data):
        result, metrics, counts, losses, present, reports, loss = tff.federated_map(
            client_work, (tff.federated_broadcast(state), weights, client_data)
        )
        new_state = tff.federated_map(
            next_state,
            (state, *map(tff.federated_sum, (losses, present, reports))),
        )
        least, largest = tff.federated_map(extremes, new_state)
        return tff.templates.MeasuredProcessOutput(
            new_state,
            result,
            round_process.measurements(
                aggregate_metrics(metrics),
                counts,
                lambda_min=least,
                lambda_max=largest,
                max_loss=round_process.largest(loss),
                total_weight=tff.federated_sum(result.update_weight),
            ),
        )

    return tff.learning.templates.ClientWorkProcess(initialize, next_fn)
