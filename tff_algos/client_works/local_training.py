"""Local training: a client's batches, one optimizer step each.

The client work of FedAvg and everything that differs from it by a term in the
gradient (FedProx). The update is `initial weights - trained weights`, TFF's
model delta, so that a server optimizer can take it for a gradient.
"""

import collections

import attrs

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import local_model
from tff_algos.client_works.local_model import LocalModel, ModelOrFn, Tensors, Weights
from tff_algos.client_works.round_process import build_round_process


@attrs.frozen
class TrainingState:
    """What the loop over a client's batches carries."""

    weights: Weights
    optimizer_state: object
    metrics: object
    num_examples: tf.Tensor  # int64 []


def proximal_gradients(
    gradients: Tensors, weights: Tensors, anchor: Tensors, strength: float
) -> Tensors:
    """Adds the gradient of `strength/2 * ||weights - anchor||^2`."""
    return tuple(
        gradient + tf.constant(strength, gradient.dtype) * (weight - center)
        for gradient, weight, center in zip(gradients, weights, anchor, strict=True)
    )


def decay_learning_rate(
    optimizer: tff.learning.optimizers.Optimizer,
    state: object,
    decay: float,
    round_num: tf.Tensor,
) -> object:
    """Returns the optimizer's `state` for a round: its rate times decay ** round."""
    if decay == 1.0:
        return state
    hparams = optimizer.get_hparams(state)
    key = tff.learning.optimizers.LEARNING_RATE_KEY
    learning_rate = tf.convert_to_tensor(hparams[key])
    factor = tf.pow(decay, tf.cast(round_num, tf.float32))
    decayed = collections.OrderedDict(hparams)
    decayed[key] = learning_rate * tf.cast(factor, learning_rate.dtype)
    return optimizer.set_hparams(state, decayed)


def initialize_optimizer(
    optimizer: tff.learning.optimizers.Optimizer, trainable: Tensors
) -> object:
    """Returns a fresh optimizer state for weights like `trainable`."""
    specs = tuple(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in trainable)
    return optimizer.initialize(specs)


def train(
    model: LocalModel,
    optimizer: tff.learning.optimizers.Optimizer,
    initial_weights: Weights,
    optimizer_state: object,
    dataset: tf.data.Dataset,
    proximal_strength: float = 0.0,
) -> TrainingState:
    """Takes one optimizer step per batch of `dataset`, from `initial_weights`."""

    def step(state: TrainingState, batch) -> TrainingState:
        result = model.loss_gradients(state.weights, state.metrics, batch)
        gradients = result.gradients
        # Skipped, not multiplied by zero, so that strength 0 is FedAvg to the bit.
        if proximal_strength:
            gradients = proximal_gradients(
                gradients,
                state.weights.trainable,
                initial_weights.trainable,
                proximal_strength,
            )
        new_optimizer_state, trainable = optimizer.next(
            state.optimizer_state, state.weights.trainable, gradients
        )
        return TrainingState(
            Weights(trainable, result.non_trainable),
            new_optimizer_state,
            result.metrics,
            state.num_examples + result.num_examples,
        )

    return dataset.reduce(
        TrainingState(
            initial_weights,
            optimizer_state,
            model.initial_metrics(),
            tf.constant(0, tf.int64),
        ),
        step,
    )


def build_local_training_client_work(
    model: ModelOrFn,
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    proximal_strength: float = 0.0,
    learning_rate_decay: float = 1.0,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds the client work that trains on each client's batches.

    The state is the round, `int32@SERVER`. The optimizer starts afresh on every
    client in every round. Clients without examples and clients whose update is
    not finite are excluded and counted.

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      optimizer: The client optimizer.
      client_weighting: Whether clients weigh by the examples they processed or
        all alike.
      proximal_strength: mu of FedProx, loss per squared weight, >= 0; 0 is FedAvg.
      learning_rate_decay: The client learning rate in round t is its initial
        value times this to the power t; in (0, 1].
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.

    Returns:
      A process whose `next` maps `<int32@SERVER, {ModelWeights}@CLIENTS,
      {B*}@CLIENTS>` to client results of type `<update=trainable weights,
      update_weight=float32>@CLIENTS` and the measurements
      `<train=metrics, num_non_finite_clients=int32, num_empty_clients=int32>`.
    """

    def client_update(model, round_num, server_weights, dataset):
        initial = local_model.flatten(server_weights)
        optimizer_state = decay_learning_rate(
            optimizer,
            initialize_optimizer(optimizer, initial.trainable),
            learning_rate_decay,
            round_num,
        )
        final = train(
            model, optimizer, initial, optimizer_state, dataset, proximal_strength
        )
        delta = tf.nest.map_structure(
            tf.subtract, initial.trainable, final.weights.trainable
        )
        report = local_model.report(
            model,
            server_weights,
            delta,
            client_weighting,
            final.num_examples,
            final.metrics,
        )
        return report, {}

    return build_round_process(model, client_update, metrics_aggregator)
