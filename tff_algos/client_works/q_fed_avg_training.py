"""Local training with clients weighted by their loss before it.

The client work of q-FedAvg: Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in
Federated Learning", 2020, arXiv 1905.10497.
"""

from typing import Annotated, Literal

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import local_training
from tff_algos.client_works.round_process import build_round_process
from tff_algos.clients import attacks
from tff_algos.clients.client_data import ClientDataFields
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import local_model
from tff_algos.models.local_model import LocalModel, ModelOrFn, Weights

LossReduction = Literal["mean", "total"]


def loss_at(
    model: LocalModel,
    weights: Weights,
    dataset: tf.data.Dataset,
    reduction: LossReduction,
) -> tf.Tensor:
    """Returns the loss at fixed weights on a dataset, float64 []; 0 without examples.

    Args:
      model: The view of the model.
      weights: The weights to evaluate the model at.
      dataset: The batches.
      reduction: "mean" over the examples, or "total": the sum of the batches' mean
        losses.
    """

    no_metrics = model.initial_metrics()

    def add_batch(state, batch):
        total, count = state
        evaluated = model.evaluate(weights, no_metrics, batch)
        size = tf.cast(evaluated.num_examples, tf.float64)
        weight = size if reduction == "mean" else tf.ones_like(size)
        return total + tf.cast(evaluated.loss, tf.float64) * weight, count + weight

    zero = tf.constant(0.0, tf.float64)
    with model.uncounted():
        total, count = dataset.reduce((zero, zero), add_batch)
    return tf.math.divide_no_nan(total, count) if reduction == "mean" else total


@checked
def build_loss_weighted_training_client_work(
    model: ModelOrFn,
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    loss_floor: Annotated[float, hparam(above=0)],
    loss_reduction: Annotated[LossReduction, hparam()] = "mean",
    client_learning_rate_decay: float = 1.0,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
    with_full_pass: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds local training whose update weight is the loss of the server's model.

    The loss F_k is computed over a pass of the client's examples, without dropout,
    before the first step. Excluded clients have weight zero; a client is excluded as in
    `build_local_training_client_work` or if its loss is not finite.

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      optimizer: The client optimizer.
      loss_floor: Added to the loss, so that clients with zero loss take part.
      loss_reduction: "mean" over the examples, or "total": the sum of the mean losses
        of the pass's batches.
      client_learning_rate_decay: As in `build_local_training_client_work`.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_local_training_client_work`.
      with_full_pass: Whether clients' data include `full_pass`, the examples of F_k;
        without it, these are the round's batches. See `client_data`.

    Returns:
      A process typed as `build_local_training_client_work`'s, with the additional
      measurement `max_loss` (float32; NaN if no client counts).

    Raises:
      HyperparameterError: If an argument is invalid.
    """
    local_update = local_training.build_local_update(
        optimizer, client_learning_rate_decay=client_learning_rate_decay
    )

    def client_update(model, round_num, server_weights, data):
        initial = local_model.flatten(server_weights)
        loss = loss_at(model, initial, data.full_pass, loss_reduction)
        loss = attacks.reported_loss(loss, data.batches)
        update = local_update(model, round_num, server_weights, data.batches)
        uniform = tff.learning.ClientWeighting.UNIFORM
        report = update.report(model, server_weights, uniform, loss)
        weight = tf.cast(loss, tf.float32) + tf.constant(loss_floor, tf.float32)
        report = report.with_weight(weight)
        weight = report.result.update_weight
        shown = tf.where(report.counts_in, weight, weight.dtype.min)
        return report, {"max_loss": shown}

    fields = ClientDataFields(num_examples=with_num_examples, full_pass=with_full_pass)
    return build_round_process(model, client_update, metrics_aggregator, fields=fields)
