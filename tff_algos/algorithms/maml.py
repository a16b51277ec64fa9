"""MAML and first-order MAML, with a gradient step at the server.

Finn, Abbeel, Levine: "Model-Agnostic Meta-Learning for Fast Adaptation of Deep
Networks", 2017, arXiv 1703.03400; as federated algorithms: Jiang, Konecny, Rush,
Kannan: "Improving Federated Learning Personalization via Model Agnostic Meta
Learning", 2019, arXiv 1909.12488.

A client takes K local steps and reports the gradient of its query loss there: with
respect to the server's model (MAML), or to the weights after the K steps (FOMAML).
With K = 0 and all examples for a query both are uniform FedSGD; where losses are
linear in the weights they are the same.
"""

import functools
from typing import get_args

import attrs
import tensorflow_federated as tff

from tff_algos.algorithms import algorithm
from tff_algos.client_works import meta_gradient, unrolled_training
from tff_algos.client_works.meta_gradient import Query
from tff_algos.clients.batching import BatchSpec, StepBatching
from tff_algos.hyperparameters import (
    AT_LEAST_ONE,
    NON_NEGATIVE,
    POSITIVE,
    HyperparameterError,
    choice,
    hparam,
)
from tff_algos.models.local_model import ModelOrFn


@attrs.frozen(kw_only=True)
class MAMLHParams(
    algorithm.RoundHParams,
    algorithm.ClientRateHParams,
    algorithm.ServerOptimizerHParams,
):
    """MAML(K) and FOMAML(K): eta, K, B at the clients; S; eta_g at the server."""

    clients_per_round: int = hparam(
        5, int, AT_LEAST_ONE, "clients sampled per round", "S"
    )
    max_elements_per_client: int | None = hparam(
        None, int, AT_LEAST_ONE, "most examples of a client used per round (all)"
    )
    client_steps_per_round: int = hparam(
        5, int, NON_NEGATIVE, "local steps before the gradient is taken", "K"
    )
    query: str = choice(
        "next_batch",
        ("next_batch", "all", "held_out"),
        "examples of the gradient after the local steps",
    )
    step_batching: str | None = choice(
        None,
        get_args(StepBatching),
        "batches of K local steps: full ones that straddle passes over the examples, or "
        "those of each pass (straddling; per_pass where the query is held out)",
    )
    gradient_clip_norm: float | None = hparam(
        None, float, POSITIVE, "largest L2 norm of a client's gradient (no limit)"
    )

    def __attrs_post_init__(self):
        if self.query == "held_out" and self.step_batching == "straddling":
            raise HyperparameterError(
                "step_batching",
                self.step_batching,
                "per_pass for --query=held_out, which keeps every other batch of a pass",
            )

    @property
    def straddles(self) -> bool:
        """Whether the batches of local steps straddle passes over the examples."""
        return self.query != "held_out" and self.step_batching != "per_pass"

    def batches(self) -> BatchSpec:
        """Returns the batches of the K steps and of the query.

        They are K + 1 for the next batch as query. Else they are one pass, which the
        client work repeats, or, where batches straddle passes, the K alone.
        """
        steps = self.client_steps_per_round
        if self.query == "next_batch":
            steps += 1
        elif not self.straddles:
            steps = None
        return BatchSpec(
            batch_size=self.client_batch_size,
            num_epochs=1 if steps is None else None,
            # A client that takes no step has a batch all the same, and leaves it.
            num_steps=None if steps is None else max(steps, 1),
            max_elements=self.max_elements_per_client,
            step_batching=self.step_batching or "straddling",
        )


def build_maml(
    model_fn: ModelOrFn,
    server_optimizer: tff.learning.optimizers.Optimizer,
    *,
    client_learning_rate: float,
    num_steps: int,
    query: Query = "next_batch",
    first_order: bool = False,
    client_learning_rate_decay: float = 1.0,
    gradient_clip_norm: float | None = None,
    max_trajectory_bytes: int = unrolled_training.MAX_TRAJECTORY_BYTES,
    model_distributor: tff.learning.templates.DistributionProcess | None = None,
    model_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
    with_full_pass: bool = False,
) -> tff.learning.templates.LearningProcess:
    """Builds MAML(K).

    Clients weigh alike. Local steps are plain SGD, the only optimizer that the
    gradient goes back through.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, whose loss is a function of
        weights and batch (the same dropout for the same two). With `first_order`
        also a no-argument function that returns a
        `tff.learning.models.VariableModel`.
      server_optimizer: Takes its step with the mean of the clients' gradients.
      client_learning_rate: eta of the local steps, > 0.
      num_steps: K >= 0.
      query: What the gradient is taken on: "next_batch", the batch after the K of
        training; "all" of the client's examples; "held_out", every other batch,
        which training leaves out (a client of one batch is then left out).
      first_order: Whether to leave out the way back through the steps (FOMAML).
      client_learning_rate_decay: Factor on eta after every round, in (0, 1].
      gradient_clip_norm: Largest L2 norm of a client's gradient, > 0; None for no
        limit.
      max_trajectory_bytes: Memory of a client for the weights of all its steps;
        where they take more, only about the square root of them is kept.
      model_distributor: Instead of a plain broadcast.
      model_aggregator: Instead of the mean.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_fed_avg`.
      with_full_pass: Whether clients' data hold, as `full_pass`, batches in which each of
        a client's examples comes once: the query "all". The batches beside it are those
        of the K steps, as for "next_batch".

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `build_fed_avg`'s. For
      "next_batch" give every client K + 1 batches,
      `dataset.repeat().batch(B).take(K + 1)`; with a `full_pass` K batches; else each
      example once. Batches come again where they run out.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If the model is not functional and `first_order` is not set.
      ValueError: If the model draws at random what it would not draw again.
    """
    MAMLHParams(
        client_learning_rate=client_learning_rate,
        client_learning_rate_decay=client_learning_rate_decay,
        client_steps_per_round=num_steps,
        query=query,
        gradient_clip_norm=gradient_clip_norm,
    )
    client_work = meta_gradient.build_meta_gradient_client_work(
        model_fn,
        client_learning_rate,
        meta_gradient.steps_then_query(num_steps, query),
        client_weighting=tff.learning.ClientWeighting.UNIFORM,
        first_order=first_order,
        gradient_clip_norm=gradient_clip_norm,
        learning_rate_decay=client_learning_rate_decay,
        max_trajectory_bytes=max_trajectory_bytes,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
        with_full_pass=with_full_pass,
    )
    return algorithm.compose(
        model_fn,
        client_work,
        server_optimizer,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )


def build_fomaml(
    model_fn: ModelOrFn,
    server_optimizer: tff.learning.optimizers.Optimizer,
    *,
    client_learning_rate: float,
    num_steps: int,
    **kwargs,
) -> tff.learning.templates.LearningProcess:
    """Builds FOMAML(K), MAML(K) without the way back through the local steps.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      server_optimizer: As in `build_maml`.
      client_learning_rate: As in `build_maml`.
      num_steps: As in `build_maml`.
      **kwargs: The other arguments of `build_maml`.

    Returns:
      As `build_maml`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    return build_maml(
        model_fn,
        server_optimizer,
        client_learning_rate=client_learning_rate,
        num_steps=num_steps,
        first_order=True,
        **kwargs,
    )


def _build_stages(name, build, task, hparams):
    process = build(
        task.model,
        algorithm.server_optimizer_from(hparams),
        client_learning_rate=hparams.client_learning_rate,
        num_steps=hparams.client_steps_per_round,
        query=hparams.query,
        client_learning_rate_decay=hparams.client_learning_rate_decay,
        gradient_clip_norm=hparams.gradient_clip_norm,
        with_num_examples=hparams.batches().num_steps is not None
        and algorithm.has_statistics(task.model),
        with_full_pass=hparams.query == "all" and hparams.straddles,
    )
    return algorithm.single_stage(name, process, hparams)


_SETTINGS = {algorithm.EVERY_TASK: {"server_learning_rate": 0.1}}

FOMAML = algorithm.Algorithm(
    name="fomaml",
    title="FOMAML",
    summary="gradients at the end of K local steps",
    paper="Jiang et al., 2019, arXiv 1909.12488",
    hparams=MAMLHParams,
    build_stages=functools.partial(_build_stages, "fomaml", build_fomaml),
    settings=_SETTINGS,
)

MAML = algorithm.Algorithm(
    name="maml",
    title="MAML",
    summary="gradients of the loss after K local steps, at their start",
    paper="Finn et al., 2017, arXiv 1703.03400",
    hparams=MAMLHParams,
    build_stages=functools.partial(_build_stages, "maml", build_maml),
    settings=_SETTINGS,
)
