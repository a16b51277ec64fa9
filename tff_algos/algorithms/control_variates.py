"""Algorithms whose clients remember how their losses differ: SCAFFOLD and FedDyn.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning", 2020, arXiv 1910.06378. Every client corrects its
steps by the difference of two control variates, its own and the mean of all. In the
first round, where all are zero, it is FedAvg with uniform weights; with one client it
is local SGD for ever.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: "Federated Learning Based on
Dynamic Regularization", 2021, arXiv 2111.04263 (FedDyn). Every client adds to its loss
a linear and a proximal term, such that the minima of all clients come to agree. Its
first round is FedProx (mu = alpha, uniform weights) with server rate 1 + S/N; alpha = 0
is FedAvg with uniform weights.
"""

import statistics

import attrs
import tensorflow_federated as tff

from tasks.task import Task
from tff_algos import aggregators, client_works, finalizers
from tff_algos.algorithms import algorithm
from tff_algos.client_works.control_variates import ControlVariate
from tff_algos.hyperparameters import (
    NON_NEGATIVE,
    POSITIVE,
    HyperparameterError,
    choice,
    hparam,
    switch,
)
from tff_algos.models import local_model
from tff_algos.models.local_model import ModelOrFn


@attrs.frozen(kw_only=True)
class ScaffoldHParams(algorithm.LocalStepsHParams, algorithm.ServerOptimizerHParams):
    """SCAFFOLD: eta, E, B, S at the clients, which take plain SGD steps; eta_g."""

    control_variate: str = choice(
        "mean_step",
        ("mean_step", "full_gradient"),
        "new control variate of a client: mean of its steps' gradients (option II) or "
        "gradient of all its examples at the server's model (option I)",
    )


@attrs.frozen(kw_only=True, slots=False)
class RegularizationHParams:
    """What FedDyn has and FedAvg has not."""

    dynamic_regularization: float = hparam(
        0.01,
        float,
        NON_NEGATIVE,
        "strength of FedDyn's terms, loss per squared weight",
        "alpha",
    )
    adaptive_regularization: bool = switch(
        False,
        "a client's strength is in inverse proportion to its examples, their mean "
        "alpha's; reads every client's examples once, to count them",
    )


@attrs.frozen(kw_only=True)
class FedDynHParams(RegularizationHParams, algorithm.UnweightedTrainingHParams):
    """FedDyn: eta, E, B, S at the clients, alpha. The server has no rate."""


def build_scaffold(
    model_fn: ModelOrFn,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    *,
    client_learning_rate: float,
    num_clients: int,
    control_variate: ControlVariate = "mean_step",
    client_learning_rate_decay: float = 1.0,
    model_distributor: tff.learning.templates.DistributionProcess | None = None,
    model_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
    with_full_pass: bool = False,
) -> tff.learning.templates.LearningProcess:
    """Builds SCAFFOLD.

    y <- y - eta * (grad f(y) - c_k + c) at the clients, then w <- w - eta_g * mean
    delta_k and c <- c + (S/N) * mean (new c_k - c_k), S the clients that count, all
    with equal weights. It keeps c = mean of all c_k.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      server_optimizer: Takes the mean model delta for a gradient; SGD with learning
        rate 1 by default.
      client_learning_rate: eta of local steps, > 0: plain SGD, of which alone the
        paper's option II recovers the mean gradient.
      num_clients: N, all clients that there are, >= 1.
      control_variate: A client's new c_k: "mean_step" (option II) or "full_gradient"
        (option I, one more pass over its examples).
      client_learning_rate_decay: Factor on eta after every round, in (0, 1].
      model_distributor: Instead of a plain broadcast.
      model_aggregator: Instead of the weighted mean.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_fed_avg`.
      with_full_pass: Whether clients' data hold `full_pass`, over which "full_gradient" is
        taken, as F_k in `build_q_fed_avg`.

    Returns:
      A `tff.learning.templates.LearningProcess` whose `next` has the type
      `(<S@SERVER, {<examples=B*, client_index=int32*, memory=row*>}@CLIENTS> ->
      <state=S@SERVER, metrics=M@SERVER>)`. `client_index` holds the client's number in
      [0, N), `memory` its c_k; new ones are in the metrics, under
      `client_work/memory`: `tff_algos.ClientMemory` keeps them between rounds.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    ScaffoldHParams(
        client_learning_rate=client_learning_rate,
        client_learning_rate_decay=client_learning_rate_decay,
        control_variate=control_variate,
    )
    algorithm.check_num_clients(num_clients)
    client_work = client_works.build_scaffold_client_work(
        model_fn,
        client_learning_rate=client_learning_rate,
        num_clients=num_clients,
        control_variate=control_variate,
        learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
        with_full_pass=with_full_pass,
    )
    return client_works.undo_rejected_rounds(
        algorithm.compose(
            model_fn,
            client_work,
            server_optimizer or tff.learning.optimizers.build_sgdm(1.0),
            model_distributor=model_distributor,
            model_aggregator=model_aggregator,
        )
    )


def build_fed_dyn(
    model_fn: ModelOrFn,
    client_optimizer: tff.learning.optimizers.Optimizer,
    *,
    dynamic_regularization: float,
    num_clients: int,
    mean_examples: float | None = None,
    client_learning_rate_decay: float = 1.0,
    model_distributor: tff.learning.templates.DistributionProcess | None = None,
    model_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
) -> tff.learning.templates.LearningProcess:
    """Builds FedDyn.

    Clients minimise f(y) - <lambda_k, y> + alpha/2 * ||y - w||^2 and set lambda_k <-
    lambda_k + alpha * delta_k; at the server h <- h + (alpha/N) * sum delta_k and
    w <- mean y_k - h/alpha. It keeps h = mean of all lambda_k. alpha = 0 is FedAvg with
    uniform weights by definition, which the limit is not.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      client_optimizer: The optimizer of local steps, one per batch.
      dynamic_regularization: alpha, loss per squared weight, >= 0.
      num_clients: N, all clients that there are, >= 1.
      mean_examples: n, the mean over all clients of n_k, the examples in a client's
        batches or what its data tell (`with_num_examples`), > 0: client k then has
        alpha_k = alpha * n/n_k and lambda_k * n/n_k for alpha and lambda_k (the authors'
        code). None: alpha is everybody's.
      client_learning_rate_decay: Factor on the client learning rate after every
        round, in (0, 1].
      model_distributor: Instead of a plain broadcast.
      model_aggregator: Instead of the weighted mean.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_fed_avg`.

    Returns:
      As `build_scaffold`; rows are lambda_k.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    RegularizationHParams(dynamic_regularization=dynamic_regularization)
    if mean_examples is not None and mean_examples not in POSITIVE:
        raise HyperparameterError(
            "mean_examples", mean_examples, f"a number {POSITIVE}"
        )
    algorithm.check_num_clients(num_clients)
    client_work = client_works.build_dynamic_regularization_client_work(
        model_fn,
        client_optimizer,
        regularization=dynamic_regularization,
        mean_examples=mean_examples,
        learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
    finalizer = finalizers.build_dynamic_regularization_finalizer(
        local_model.weights_type(model_fn),
        regularization=dynamic_regularization,
        num_clients=num_clients,
    )
    return client_works.undo_rejected_rounds(
        algorithm.compose(
            model_fn,
            client_work,
            finalizer=finalizer,
            model_distributor=model_distributor,
            model_aggregator=aggregators.TotalWeightFactory(model_aggregator),
        )
    )


def _build_scaffold_stages(task, hparams):
    process = build_scaffold(
        task.model,
        algorithm.server_optimizer_from(hparams),
        client_learning_rate=hparams.client_learning_rate,
        num_clients=len(task.train_client_ids),
        control_variate=hparams.control_variate,
        client_learning_rate_decay=hparams.client_learning_rate_decay,
        with_num_examples=algorithm.tells_num_examples(hparams, task.model),
        with_full_pass=hparams.control_variate == "full_gradient"
        and algorithm.needs_full_pass(hparams),
    )
    return algorithm.single_stage("scaffold", process, hparams)


def _mean_examples(task: Task, hparams: FedDynHParams) -> float:
    """Returns the mean over all clients of the examples that alpha is divided by."""
    batches = hparams.batches()
    # Epochs count every example E times, in the mean as in a client's batches.
    by_epochs = batches.num_steps is None
    count = batches.num_processed if by_epochs else batches.num_examples
    return statistics.fmean(
        count(len(task.examples(client_id, "train")[0]))
        for client_id in task.train_client_ids
    )


def _build_fed_dyn_stages(task, hparams):
    process = build_fed_dyn(
        task.model,
        algorithm.build_client_optimizer(hparams),
        dynamic_regularization=hparams.dynamic_regularization,
        num_clients=len(task.train_client_ids),
        mean_examples=(
            _mean_examples(task, hparams) if hparams.adaptive_regularization else None
        ),
        client_learning_rate_decay=hparams.client_learning_rate_decay,
        with_num_examples=hparams.client_steps_per_round is not None
        and (hparams.adaptive_regularization or algorithm.has_statistics(task.model)),
    )
    return algorithm.single_stage("feddyn", process, hparams)


SCAFFOLD = algorithm.Algorithm(
    name="scaffold",
    title="SCAFFOLD",
    summary="FedAvg whose clients correct their steps by control variates",
    paper="Karimireddy et al., 2020, arXiv 1910.06378",
    hparams=ScaffoldHParams,
    build_stages=_build_scaffold_stages,
)

FED_DYN = algorithm.Algorithm(
    name="feddyn",
    title="FedDyn",
    summary="FedAvg with a linear and a proximal term that clients learn",
    paper="Acar et al., 2021, arXiv 2111.04263",
    hparams=FedDynHParams,
    build_stages=_build_fed_dyn_stages,
)
