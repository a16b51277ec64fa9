"""MAML and first-order MAML (FOMAML), with a gradient step at the server.

Finn, Abbeel, Levine: "Model-Agnostic Meta-Learning for Fast Adaptation of Deep
Networks", 2017, arXiv 1703.03400; as federated algorithms: Jiang, Konecny, Rush,
Kannan: "Improving Federated Learning Personalization via Model Agnostic Meta Learning",
2019, arXiv 1909.12488.

A round, q_k client k's query loss and S the clients of the cohort:

    client k:  y(w) = w after K steps of SGD with learning rate eta
    MAML(K)    g_k = grad_w q_k(y(w)), back through the K steps
    FOMAML(K)  g_k = grad q_k at y(w)
    server:    w <- w - eta_g * mean_k g_k

Reduces to: uniform FedSGD with K = 0 and all examples as query; MAML and FOMAML agree
where losses are linear in the weights.

A client regroups its examples into batches of the size of its first one, so only the last
batch of a pass may be smaller.

Cost per round: FedSGD's communication. Back through K steps, MAML keeps the weights
before each of them, or about the square root of them (`max_trajectory_bytes`).
"""

from typing import Annotated

from tff_algos.algorithms.arguments import (
    UNIFORM,
    ClientLearningRate,
    ClientLearningRateDecay,
    Distributor,
    GradientClipNorm,
    LearningProcess,
    MetricsAggregator,
    Optimizer,
    WeightedAggregator,
)
from tff_algos.algorithms.composition import compose
from tff_algos.client_works import meta_gradient, unrolled_training
from tff_algos.client_works.meta_gradient import Query
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import ModelOrFn

NumSteps = Annotated[int, hparam(low=0, symbol="K")]
QuerySet = Annotated[Query, hparam()]


@checked
def build_maml(
    model_fn: ModelOrFn,
    server_optimizer_fn: Optimizer,
    *,
    client_learning_rate: ClientLearningRate = 0.1,
    client_steps_per_round: NumSteps = 5,
    query: QuerySet = "next_batch",
    first_order: bool = False,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    gradient_clip_norm: GradientClipNorm = None,
    max_trajectory_bytes: int = unrolled_training.MAX_TRAJECTORY_BYTES,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
    with_full_pass: bool = False,
) -> LearningProcess:
    """Builds MAML(K).

    Clients are weighted uniformly. Local steps are plain SGD, the only optimizer that
    the gradient goes back through.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel` whose loss is a function of
        weights and batch (the same dropout for the same two). With `first_order` also a
        no-argument function that returns a `tff.learning.models.VariableModel`.
      server_optimizer_fn: Takes its step with the mean of the clients' gradients.
      client_learning_rate: Learning rate of local steps.
      client_steps_per_round: Local steps before the gradient is taken.
      query: Examples of the gradient that is taken after the K local steps: next_batch,
        the batch that follows theirs; all, every example of the client; held_out, every
        other batch, which the steps skip (clients of one batch are excluded).
      first_order: Whether to omit the way back through the steps (FOMAML).
      client_learning_rate_decay: Decay factor of the client learning rate per round.
      gradient_clip_norm: Largest L2 norm of a client's gradient; None for no limit.
      max_trajectory_bytes: A client's memory for the weights of all its steps. If they
        need more, only about the square root of them are kept.
      model_distributor: Replaces the plain broadcast.
      model_aggregator: Replaces the mean.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_fed_avg`.
      with_full_pass: Whether clients' data include `full_pass`, batches in which each of
        a client's examples occurs once, for the query "all". The batches beside it are
        then those of the K steps, as for "next_batch".

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `build_fed_avg`'s. For
      "next_batch" give every client K + 1 batches,
      `dataset.repeat().batch(B).take(K + 1)`; with a `full_pass` K batches; otherwise
      each example once. Batches are repeated where they run out.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If the model is not functional and `first_order` is not set.
      ValueError: If the model draws random numbers that it would not draw again.
    """
    client_work = meta_gradient.build_meta_gradient_client_work(
        model_fn,
        client_learning_rate,
        meta_gradient.steps_then_query(client_steps_per_round, query),
        client_weighting=UNIFORM,
        first_order=first_order,
        gradient_clip_norm=gradient_clip_norm,
        client_learning_rate_decay=client_learning_rate_decay,
        max_trajectory_bytes=max_trajectory_bytes,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
        with_full_pass=with_full_pass,
    )
    return compose(
        model_fn,
        client_work,
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )


@checked
def build_fomaml(
    model_fn: ModelOrFn,
    server_optimizer_fn: Optimizer,
    *,
    client_learning_rate: ClientLearningRate = 0.1,
    client_steps_per_round: NumSteps = 5,
    query: QuerySet = "next_batch",
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    gradient_clip_norm: GradientClipNorm = None,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
    with_full_pass: bool = False,
) -> LearningProcess:
    """Builds FOMAML(K): MAML(K) without the way back through the local steps.

    Args:
      model_fn: As in `build_fed_avg`.
      server_optimizer_fn: As in `build_maml`, and so is every argument not listed here.

    Returns:
      As `build_maml`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    return build_maml(
        model_fn,
        server_optimizer_fn,
        client_learning_rate=client_learning_rate,
        client_steps_per_round=client_steps_per_round,
        query=query,
        first_order=True,
        client_learning_rate_decay=client_learning_rate_decay,
        gradient_clip_norm=gradient_clip_norm,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
        with_full_pass=with_full_pass,
    )
