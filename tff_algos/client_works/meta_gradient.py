"""Gradients through local training: UGA, MAML, and first-order MAML.

A client trains on its support batches and then reports the gradient of the loss on its
query batches. In UGA and MAML it is the exact gradient with respect to the weights
before training; in first-order MAML, with respect to the weights after training.
"""

from collections.abc import Callable
from typing import Annotated, Literal

import attrs
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import client_report, passes, unrolled_training
from tff_algos.client_works.local_training import (
    decay_learning_rate,
    initialize_optimizer,
)
from tff_algos.client_works.passes import Passes
from tff_algos.client_works.round_process import build_round_process
from tff_algos.client_works.unrolled_training import BatchesGradient, Reduction, Steps
from tff_algos.clients import attacks
from tff_algos.clients.client_data import ClientData, ClientDataFields
from tff_algos.finite import global_norm
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import local_model, random_draws
from tff_algos.models.local_model import LocalModel, ModelOrFn, Weights

Query = Literal["next_batch", "all", "held_out"]


@attrs.frozen
class Episode:
    """The support batches that a client trains on and the query that follows.

    Attributes:
      num_passes: The number of passes to read over the client's examples.
      num_steps: Maps the batches per pass (int32 []) to the local steps (int32 []).
      query: "all": the examples of the first pass, or of the data's `full_pass` if it
        has one; "next_batch": the batch after the last step; "held_out": every other
        batch, excluded from training.
      passes_in_data: Whether the data hold the passes, one after the other, or one pass
        that is read several times.
    """

    num_passes: int
    num_steps: Callable[[tf.Tensor], tf.Tensor]
    query: Query
    passes_in_data: bool = False

    def read(self, data: ClientData) -> tuple[Passes, Passes]:
        """Returns the support and the query of a client."""
        if self.query == "held_out":
            support = passes.read(data.batches.shard(2, 0), self.num_passes)
            return support, passes.read(data.batches.shard(2, 1))
        read = passes.split if self.passes_in_data else passes.read
        support = read(data.batches, self.num_passes)
        if self.query == "all" and data.full_pass is not data.batches:
            return support, passes.read(data.full_pass)
        return support, support


@checked
def epochs_then_all(
    num_epochs: Annotated[int, hparam(low=1, symbol="E")], epochs_in_data: bool = False
) -> Episode:
    """Trains for E - 1 epochs; the query is all of the client's examples (UGA).

    Args:
      num_epochs: The number of epochs, including the query.
      epochs_in_data: Whether the client's data hold E epochs, which may differ in order,
        or one epoch that is repeated.

    Raises:
      HyperparameterError: If `num_epochs` is not positive.
    """
    return Episode(
        num_passes=num_epochs if epochs_in_data else max(1, num_epochs - 1),
        num_steps=lambda batches_per_pass: (num_epochs - 1) * batches_per_pass,
        query="all",
        passes_in_data=epochs_in_data,
    )


@checked
def steps_then_query(
    num_steps: Annotated[int, hparam(low=0, symbol="K")],
    query: Annotated[Query, hparam()] = "next_batch",
) -> Episode:
    """Trains for K steps on the client's batches, repeating them if they run out.

    Args:
      num_steps: The number of local steps.
      query: As in `Episode`.

    Raises:
      HyperparameterError: If an argument is invalid.
    """
    return Episode(
        num_passes=1, num_steps=lambda _: tf.constant(num_steps), query=query
    )


@attrs.frozen(eq=False)
class _Client:
    """One client's work."""

    model: LocalModel
    optimizer: tff.learning.optimizers.Optimizer
    episode: Episode
    reduction: Reduction
    first_order: bool
    max_trajectory_bytes: int

    def gradient(
        self, weights: Weights, optimizer_state: object, data: ClientData
    ) -> BatchesGradient:
        """Returns the gradient; zero, with no examples, if the client has no query."""
        support, query = self.episode.read(data)
        # A client without a query does not train.
        any_query = tf.minimum(query.batches_per_pass, 1)
        num_steps = any_query * self.episode.num_steps(support.batches_per_pass)
        first, last = tf.constant(0), query.batches_per_pass
        if self.episode.query == "next_batch":
            first, last = num_steps, num_steps + any_query

        def final_gradient(trainable, metrics):
            at = attrs.evolve(weights, trainable=trainable)
            return unrolled_training.gradient_of_batches(
                self.model, at, metrics, query, first, last, self.reduction
            )

        steps = Steps(
            self.model,
            self.optimizer,
            optimizer_state,
            support,
            weights.non_trainable,
        )
        start, metrics = weights.trainable, self.model.initial_metrics()
        if self.first_order:
            return final_gradient(
                *unrolled_training.train(steps, num_steps, start, metrics)
            )
        return unrolled_training.gradient_through_training(
            steps, num_steps, start, metrics, final_gradient, self.max_trajectory_bytes
        )


@checked
def build_meta_gradient_client_work(
    model: ModelOrFn,
    client_learning_rate: Annotated[float, hparam(above=0, symbol="eta")],
    episode: Episode,
    *,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    first_order: bool = False,
    eval_reduction: Annotated[Reduction, hparam()] = "mean",
    gradient_clip_norm: Annotated[float | None, hparam(above=0)] = None,
    client_learning_rate_decay: Annotated[float, hparam(above=0, high=1)] = 1.0,
    max_trajectory_bytes: int = unrolled_training.MAX_TRAJECTORY_BYTES,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
    with_full_pass: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds the client work that reports a gradient through local training.

    The state is the round, `int32@SERVER`. Local steps are plain SGD, the only
    optimizer that the gradient is propagated through. Clients without examples or
    without a query and clients whose gradient is not finite (divergent training) are
    excluded and counted.

    Args:
      model: A `tff.learning.models.FunctionalModel` whose loss is a deterministic
        function of weights and batch, dropout included. With `first_order`,
        a no-argument function that returns a `tff.learning.models.VariableModel` is
        valid too.
      client_learning_rate: Learning rate of the local steps.
      episode: The clients' support and query: `epochs_then_all` or
        `steps_then_query`.
      client_weighting: Whether clients are weighted by the examples of their query or
        uniformly.
      first_order: Whether to omit the backward pass through the steps.
      eval_reduction: Whether the query's loss is the mean or the sum over its
        examples.
      gradient_clip_norm: Largest global L2 norm of a client's gradient; larger
        gradients are scaled down. None for no limit.
      client_learning_rate_decay: eta in round t is its initial value times this to the
        power t.
      max_trajectory_bytes: Limit on a client's memory for the weights of all its J
        steps; above it, about sqrt(J) checkpoints are kept and the steps between them
        are recomputed.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_local_training_client_work`.
      with_full_pass: Whether clients' data include `full_pass`, the query "all", beside
        the batches of the local steps; see `client_data`.

    Returns:
      A process typed as `build_local_training_client_work`'s whose updates are
      gradients, with the additional measurement `max_gradient_norm` (float32, before
      clipping; NaN if no client counts). Clients' datasets must yield each example
      once, or once per pass with `Episode.passes_in_data`, in batches of one size; only
      the last batch of a pass may be smaller.

    Raises:
      HyperparameterError: If an argument is invalid.
      TypeError: If the model is not functional and `first_order` is False.
      ValueError: If the model uses random ops that are not deterministic functions of
        weights and batch.
    """
    if not first_order:
        _check_twice_differentiable(model)
    optimizer = tff.learning.optimizers.build_sgdm(client_learning_rate)

    def client_update(model, round_num, server_weights, data):
        weights = local_model.flatten(server_weights)
        optimizer_state = decay_learning_rate(
            optimizer,
            initialize_optimizer(optimizer, weights.trainable),
            client_learning_rate_decay,
            round_num,
        )
        client = _Client(
            model,
            optimizer,
            episode,
            eval_reduction,
            first_order,
            max_trajectory_bytes,
        )
        final = client.gradient(weights, optimizer_state, data)
        update, norm = final.gradient, global_norm(final.gradient)
        if gradient_clip_norm is not None:
            update, _ = tf.clip_by_global_norm(update, gradient_clip_norm, norm)
        report = client_report.report(
            model,
            server_weights,
            attacks.sent_update(tuple(update), data.batches),
            client_weighting,
            final.num_examples,
            final.metrics,
            norm,
            non_trainable=final.non_trainable,
        )
        norm = tf.cast(norm, tf.float32)
        norm = tf.where(report.counts_in, norm, norm.dtype.min)
        return report, {"max_gradient_norm": norm}

    fields = ClientDataFields(num_examples=with_num_examples, full_pass=with_full_pass)
    return build_round_process(model, client_update, metrics_aggregator, fields=fields)


def _check_twice_differentiable(model: ModelOrFn) -> None:
    """Raises unless the model is functional and its loss is deterministic."""
    if not local_model.is_functional(model):
        raise TypeError(
            "Gradients through local training need pure functions of weights: expected "
            "a tff.learning.models.FunctionalModel, found a function. Tip: "
            "tff.learning.models.functional_model_from_keras, or the first-order form."
        )
    random_draws.require_none(
        model,
        "the backward pass through local training would differentiate a different loss",
    )
