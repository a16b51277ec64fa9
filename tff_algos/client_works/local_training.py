"""Local training: one optimizer step on each of a client's batches.

The client work of FedAvg and of the algorithms that only change the gradient of a step
(FedProx, SCAFFOLD, GradMA, ...). The update is TFF's model delta, `initial weights -
trained weights`, so a server optimizer can treat it as a gradient.
"""

import collections
from collections.abc import Callable
from typing import Annotated, Protocol

import attrs
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.autograph import convertible
from tff_algos.client_works import client_report
from tff_algos.client_works.round_process import build_round_process
from tff_algos.clients import attacks
from tff_algos.clients.client_data import ClientDataFields
from tff_algos.finite import at_least_float32
from tff_algos.hyperparameters import (
    HyperparameterError,
    Interval,
    UnusableHyperparameterError,
    checked,
    hparam,
)
from tff_algos.models import local_model
from tff_algos.models.local_model import (
    BatchResult,
    LocalModel,
    ModelOrFn,
    Tensors,
    Weights,
)
from tff_algos.optimizers import in_weights_dtype

_DECAYS = Interval(low=0, high=1, low_open=True)


@attrs.frozen
class TrainingState:
    """State of the loop over a client's batches."""

    weights: Weights
    optimizer_state: object
    metrics: object
    num_steps: tf.Tensor  # int64 []
    num_examples: tf.Tensor  # int64 []
    carry: object  # Anything else that the steps' gradients depend on.


# Maps the model, the state and a batch to the step's gradient and the next carry.
StepGradients = Callable[
    [LocalModel, TrainingState, object], tuple[BatchResult, object]
]


def plain_gradients(
    model: LocalModel, state: TrainingState, batch: object
) -> tuple[BatchResult, object]:
    """Returns the gradient of the batch's mean loss, for plain training."""
    return model.loss_gradients(state.weights, state.metrics, batch), state.carry


def corrected_gradients(
    correct: Callable[[tf.Tensor, ...], tf.Tensor], *others: Tensors
) -> StepGradients:
    """Returns plain gradients with a correction applied to each tensor.

    Args:
      correct: Maps corresponding tensors of the gradient, the weights and `others` to
        the gradient that the step follows.
      *others: Tensors like the trainable weights.
    """
    correct = convertible(correct)

    def gradients(model, state, batch):
        result, carry = plain_gradients(model, state, batch)
        corrected = tuple(
            correct(*tensors)
            for tensors in zip(
                result.gradients, state.weights.trainable, *others, strict=True
            )
        )
        return attrs.evolve(result, gradients=corrected), carry

    return gradients


def proximal_gradients(anchor: Tensors, strength: float) -> StepGradients:
    """Returns plain gradients plus those of `strength/2 * ||weights - anchor||^2`."""
    # Skipped, not multiplied by zero, so that strength 0 is bit-identical to FedAvg.
    if not strength:
        return plain_gradients
    return regularized_gradients(anchor, tf.constant(strength, tf.float64))


def regularized_gradients(
    anchor: Tensors, strength: tf.Tensor, linear: Tensors | None = None
) -> StepGradients:
    """Returns plain gradients plus those of a proximal and a linear term.

    Args:
      anchor: Tensors like the trainable weights, where the proximal term is 0.
      strength: Of `strength/2 * ||weights - anchor||^2`, float64 [].
      linear: The gradient of the linear term, like the trainable weights; None for 0.
    """

    def scaled(tensor: tf.Tensor) -> tf.Tensor:
        return tf.cast(strength, tensor.dtype) * tensor

    # The constant part is computed once per client, so that a step adds two passes over
    # the weights. It precedes the gradient in the sum, so that at the anchor the proximal
    # term is exactly 0.
    constant = tuple(-scaled(center) for center in anchor)
    if linear is not None:
        constant = tuple(map(tf.add, constant, linear))
    return corrected_gradients(
        lambda gradient, weight, rest: tf.add_n([scaled(weight), rest, gradient]),
        constant,
    )


def clip_by_norm(gradients: Tensors, largest: float | None) -> Tensors:
    """Returns gradients clipped to a global L2 norm; None for no limit."""
    if largest is None:
        return gradients
    # Not tf.linalg.global_norm, whose op cannot be vectorized over clients.
    squares = [tf.reduce_sum(at_least_float32(each) ** 2) for each in gradients]
    if len({square.dtype for square in squares}) > 1:
        squares = [tf.cast(square, tf.float64) for square in squares]
    norm = tf.sqrt(tf.add_n(squares))
    return tuple(tf.clip_by_global_norm(gradients, largest, norm)[0])


def check_learning_rate_decay(
    decay: float,
    optimizer: tff.learning.optimizers.Optimizer,
    name: str = "client_learning_rate_decay",
) -> None:
    """Raises `HyperparameterError` for a decay that the optimizer cannot follow.

    Args:
      decay: The factor per round; has to be in (0, 1].
      optimizer: The optimizer; needs a learning rate to set, unless `decay` is 1.
      name: What the decay is called.
    """
    if decay not in _DECAYS:
        raise HyperparameterError(name, decay, f"a number {_DECAYS}")
    if decay == 1.0:
        return
    hparams: list[str] = []

    # A function, because a schedule that branches needs AutoGraph.
    @tf.function
    def list_hparams():
        initialize = convertible(optimizer.initialize)
        state = initialize([tf.TensorSpec([], tf.float32)])
        hparams.extend(optimizer.get_hparams(state))

    # In a graph, which leaves TensorFlow's devices uninitialized.
    with tf.Graph().as_default():
        list_hparams.get_concrete_function()
    if tff.learning.optimizers.LEARNING_RATE_KEY not in hparams:
        raise UnusableHyperparameterError(
            name,
            decay,
            "with an optimizer that has no learning rate to set, such as one with a "
            "schedule",
        )


def decay_learning_rate(
    optimizer: tff.learning.optimizers.Optimizer,
    state: object,
    decay: float,
    round_num: tf.Tensor,
) -> object:
    """Returns `state` with its learning rate multiplied by decay ** round_num."""
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
    return in_weights_dtype(optimizer).initialize(specs)


def train(
    model: LocalModel,
    optimizer: tff.learning.optimizers.Optimizer,
    initial_weights: Weights,
    optimizer_state: object,
    dataset: tf.data.Dataset,
    step_gradients: StepGradients = plain_gradients,
    carry: object = (),
) -> TrainingState:
    """Takes one optimizer step per batch of `dataset`, from `initial_weights`.

    Args:
      model: The view of the model.
      optimizer: The optimizer.
      initial_weights: The weights before the first step.
      optimizer_state: The optimizer's state before the first step.
      dataset: The batches.
      step_gradients: Computes the gradient that a step follows.
      carry: The carry that `step_gradients` gets at the first step.
    """

    optimizer = in_weights_dtype(optimizer)

    def step(state: TrainingState, batch) -> TrainingState:
        result, carry = convertible(step_gradients)(model, state, batch)
        new_optimizer_state, trainable = optimizer.next(
            state.optimizer_state, state.weights.trainable, result.gradients
        )
        return TrainingState(
            Weights(trainable, result.non_trainable),
            new_optimizer_state,
            result.metrics,
            state.num_steps + 1,
            state.num_examples + result.num_examples,
            carry,
        )

    return dataset.reduce(
        TrainingState(
            initial_weights,
            optimizer_state,
            model.initial_metrics(),
            tf.constant(0, tf.int64),
            tf.constant(0, tf.int64),
            carry,
        ),
        step,
    )


@attrs.frozen
class LocalUpdate:
    """The result of a client's training.

    Attributes:
      delta: Initial minus trained weights, in the order of the trainable weights.
      sent: The transmitted delta; equals `delta` unless the client is malicious.
      final: The state after the last batch.
    """

    delta: Tensors
    sent: Tensors
    final: TrainingState

    def report(
        self,
        model: LocalModel,
        server_weights: tff.learning.models.ModelWeights,
        client_weighting: tff.learning.ClientWeighting,
        *also_finite: object,
    ) -> client_report.ClientReport:
        """Returns the client's report; see `client_report.report`."""
        return client_report.report(
            model,
            server_weights,
            self.sent,
            client_weighting,
            self.final.num_examples,
            self.final.metrics,
            *also_finite,
            non_trainable=self.final.weights.non_trainable,
        )


class LocalUpdateFn(Protocol):
    """Trains from the server's weights."""

    def __call__(
        self,
        model: LocalModel,
        round_num: tf.Tensor,
        server_weights: tff.learning.models.ModelWeights,
        dataset: tf.data.Dataset,
        step_gradients: StepGradients = plain_gradients,
        carry: object = (),
    ) -> LocalUpdate:
        """Returns the client's update in round `round_num` (int32 [])."""


class TrainFn(Protocol):
    """Trains from any weights."""

    def __call__(
        self,
        model: LocalModel,
        round_num: tf.Tensor,
        initial: Weights,
        dataset: tf.data.Dataset,
        step_gradients: StepGradients = plain_gradients,
        carry: object = (),
    ) -> TrainingState:
        """Returns the state after one step per batch in round `round_num` (int32 [])."""


def build_train(
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    client_learning_rate_decay: float = 1.0,
) -> TrainFn:
    """Builds the function that trains a client from given weights.

    Args:
      optimizer: The client optimizer; reinitialized on every call.
      client_learning_rate_decay: As in `build_local_training_client_work`.

    Raises:
      HyperparameterError: If `client_learning_rate_decay` is out of range, or the
        optimizer has no learning rate that could decay.
    """
    check_learning_rate_decay(client_learning_rate_decay, optimizer)

    def train_from(
        model, round_num, initial, dataset, step_gradients=plain_gradients, carry=()
    ):
        optimizer_state = decay_learning_rate(
            optimizer,
            initialize_optimizer(optimizer, initial.trainable),
            client_learning_rate_decay,
            round_num,
        )
        return train(
            model, optimizer, initial, optimizer_state, dataset, step_gradients, carry
        )

    return train_from


def build_local_update(
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    client_learning_rate_decay: float = 1.0,
) -> LocalUpdateFn:
    """Builds the function that trains a client from the server's weights.

    Args:
      optimizer: The client optimizer; reinitialized on every call.
      client_learning_rate_decay: As in `build_local_training_client_work`.

    Returns:
      `(model, round_num, server_weights, dataset, step_gradients, carry) ->
      LocalUpdate`: takes one step per batch, and returns the model delta, what is sent
      of it, and the weights and metrics at the end.

    Raises:
      HyperparameterError: If `client_learning_rate_decay` is out of range, or the
        optimizer has no learning rate that could decay.
    """
    train_from = build_train(
        optimizer, client_learning_rate_decay=client_learning_rate_decay
    )

    def local_update(
        model,
        round_num,
        server_weights,
        dataset,
        step_gradients=plain_gradients,
        carry=(),
    ):
        initial = local_model.flatten(server_weights)
        final = train_from(model, round_num, initial, dataset, step_gradients, carry)
        delta = tf.nest.map_structure(
            tf.subtract, initial.trainable, final.weights.trainable
        )
        return LocalUpdate(delta, attacks.sent_update(delta, dataset), final)

    return local_update


@checked
def build_local_training_client_work(
    model: ModelOrFn,
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    proximal_strength: Annotated[float, hparam(low=0)] = 0.0,
    client_learning_rate_decay: float = 1.0,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_client_index: bool = False,
    with_num_examples: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds the client work that trains on each client's batches.

    The state is the round, `int32@SERVER`. The optimizer is reinitialized on every
    client in every round. Clients without examples and clients whose update is
    not finite are excluded and counted.

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      optimizer: The client optimizer.
      client_weighting: Whether clients are weighted by the examples they processed or
        uniformly.
      proximal_strength: mu of FedProx, loss per squared weight, >= 0; 0 is FedAvg.
      client_learning_rate_decay: The client learning rate in round t is its initial
        value times this to the power t; in (0, 1].
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_client_index: Whether clients' data and updates include `client_index`; see
        `client_data` and `round_process.build_round_process`.
      with_num_examples: Whether clients' data include `num_examples`, the weight used
        instead of the examples processed; see `client_data`.

    Returns:
      A process whose `next` maps `<int32@SERVER, {ModelWeights}@CLIENTS,
      {B*}@CLIENTS>` to client results of type `<update=trainable weights,
      update_weight=float32>@CLIENTS` and the measurements
      `<train=metrics, num_non_finite_clients=int32, num_empty_clients=int32>`. The
      update of a model whose training changes statistics is a
      `client_report.UpdateWithStatistics`.

    Raises:
      HyperparameterError: If an argument is out of range, or the optimizer has no
        learning rate that could decay.
    """

    local_update = build_local_update(
        optimizer, client_learning_rate_decay=client_learning_rate_decay
    )

    def client_update(model, round_num, server_weights, data):
        anchor = local_model.flatten(server_weights).trainable
        step_gradients = proximal_gradients(anchor, proximal_strength)
        update = local_update(
            model, round_num, server_weights, data.batches, step_gradients
        )
        return update.report(model, server_weights, client_weighting), {}

    fields = ClientDataFields(
        client_index=with_client_index, num_examples=with_num_examples
    )
    return build_round_process(model, client_update, metrics_aggregator, fields=fields)
