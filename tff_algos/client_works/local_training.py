"""Local training: a client's batches, one optimizer step each.

The client work of FedAvg and everything that differs from it by a term in the
gradient (FedProx). The update is `initial weights - trained weights`, TFF's
model delta, so that a server optimizer can take it for a gradient.
"""

import collections
from collections.abc import Callable

import attrs

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import local_model
from tff_algos.client_works.local_model import LocalModel, ModelOrFn, Tensors, Weights
from tff_algos.client_works.round_process import build_round_process
from tff_algos.hyperparameters import DECAY, HyperparameterError


@attrs.frozen
class TrainingState:
    """What the loop over a client's batches carries."""

    weights: Weights
    optimizer_state: object
    metrics: object
    num_examples: tf.Tensor  # int64 []
    loss_sum: tf.Tensor  # Of the examples, before each step; float64 [].

    def mean_loss(self) -> tf.Tensor:
        """Returns the mean loss of the examples as they were trained on, float64."""
        return tf.math.divide_no_nan(
            self.loss_sum, tf.cast(self.num_examples, tf.float64)
        )


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
            state.loss_sum + sum_of_losses(result.loss, result.num_examples),
        )

    return dataset.reduce(
        TrainingState(
            initial_weights,
            optimizer_state,
            model.initial_metrics(),
            tf.constant(0, tf.int64),
            tf.constant(0.0, tf.float64),
        ),
        step,
    )


def sum_of_losses(loss: tf.Tensor, num_examples: tf.Tensor) -> tf.Tensor:
    """Returns what a batch of mean loss `loss` adds to the sum, float64 []."""
    return tf.cast(loss, tf.float64) * tf.cast(num_examples, tf.float64)


@attrs.frozen
class LocalUpdate:
    """What a client's training came to.

    Attributes:
      delta: Initial minus trained weights, in the order of the trainable weights.
      final: The state after its last batch.
    """

    delta: Tensors
    final: TrainingState

    def report(
        self,
        model: LocalModel,
        server_weights: tff.learning.models.ModelWeights,
        client_weighting: tff.learning.ClientWeighting,
        *also_finite: object,
    ) -> local_model.ClientReport:
        """Returns the client's report; see `local_model.report`."""
        return local_model.report(
            model,
            server_weights,
            self.delta,
            client_weighting,
            self.final.num_examples,
            self.final.metrics,
            *also_finite,
        )


LocalUpdateFn = Callable[
    [LocalModel, tf.Tensor, tff.learning.models.ModelWeights, tf.data.Dataset],
    LocalUpdate,
]


def build_local_update(
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    proximal_strength: float = 0.0,
    learning_rate_decay: float = 1.0,
) -> LocalUpdateFn:
    """Builds what every client does: train from the server's weights.

    Args:
      optimizer: The client optimizer; starts afresh.
      proximal_strength: As in `build_local_training_client_work`.
      learning_rate_decay: As in `build_local_training_client_work`.

    Returns:
      A function of the view of the model, the round (int32 []), the server's weights
      and the client's data set.

    Raises:
      HyperparameterError: If `learning_rate_decay` is out of range.
    """
    if learning_rate_decay not in DECAY:
        raise HyperparameterError(
            "client_learning_rate_decay", learning_rate_decay, f"a number {DECAY}"
        )

    def local_update(model, round_num, server_weights, dataset):
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
        return LocalUpdate(delta, final)

    return local_update


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

    local_update = build_local_update(
        optimizer,
        proximal_strength=proximal_strength,
        learning_rate_decay=learning_rate_decay,
    )

    def client_update(model, round_num, server_weights, dataset):
        update = local_update(model, round_num, server_weights, dataset)
        return update.report(model, server_weights, client_weighting), {}

    return build_round_process(model, client_update, metrics_aggregator)
