"""q-FedAvg: clients with large losses weigh more.

Li, Sanjabi, Beirami, Smith: "Fair Resource Allocation in Federated Learning", 2020,
arXiv 1905.10497.

The server minimises sum_k F_k^(q+1) / (q+1). A client's gradient D_k = L * delta_k is
weighed by the power q of its loss F_k, and the step is as long as an estimate of the
curvature allows, for which L stands. With q = 0 q-FedAvg is FedAvg with uniform
weights, whatever L; the larger q, the nearer to minimising the largest loss.
"""

import attrs
import tensorflow_federated as tff

from tff_algos import aggregators, client_works
from tff_algos.aggregators.q_fair import LOSS_FLOOR
from tff_algos.algorithms import algorithm
from tff_algos.client_works.q_fed_avg_training import LossReduction
from tff_algos.hyperparameters import (
    NON_NEGATIVE,
    POSITIVE,
    HyperparameterError,
    choice,
    hparam,
)
from tff_algos.models.local_model import ModelOrFn


@attrs.frozen(kw_only=True, slots=False)
class QHParams:
    """What q-FedAvg has and FedAvg has not: q, L."""

    q: float = hparam(
        0.5, float, NON_NEGATIVE, "power of the loss that a client weighs by", "q"
    )
    lipschitz: float | None = hparam(
        None,
        float,
        POSITIVE,
        "estimate of how fast gradients change (the inverse of the clients' rate)",
        "L",
    )
    loss_reduction: str = choice(
        "mean",
        ("mean", "total"),
        "a client's loss: mean over its examples, or sum over the batches of one pass of "
        "their mean losses",
    )


@attrs.frozen(kw_only=True)
class QFedAvgHParams(
    QHParams, algorithm.UnweightedTrainingHParams, algorithm.ServerOptimizerHParams
):
    """q-FedAvg: FedAvg's without weights, and q, L."""


def build_q_fed_avg(
    model_fn: ModelOrFn,
    client_optimizer: tff.learning.optimizers.Optimizer,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    *,
    q: float,
    lipschitz: float,
    loss_reduction: LossReduction = "mean",
    client_learning_rate_decay: float = 1.0,
    model_distributor: tff.learning.templates.DistributionProcess | None = None,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
    with_full_pass: bool = False,
) -> tff.learning.templates.LearningProcess:
    """Builds q-FedAvg.

    w <- w - sum_k F_k^q D_k / sum_k (q F_k^(q-1) ||D_k||^2 + L F_k^q), where F_k is
    client k's loss at w over its examples, without dropout.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      client_optimizer: The optimizer of local steps, one per batch.
      server_optimizer: Takes the fraction for a gradient; SGD with learning rate 1
        by default, which is q-FedAvg.
      q: Power of the loss, >= 0; 0 is FedAvg with uniform weights.
      lipschitz: L, gradient per weight, > 0; the inverse of the client learning rate
        in the paper.
      loss_reduction: "mean" over the client's examples, or "total": the sum over the
        batches of one pass of their mean losses.
      client_learning_rate_decay: Factor on the client learning rate after every
        round, in (0, 1].
      model_distributor: Instead of a plain broadcast.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_fed_avg`.
      with_full_pass: Whether clients' data hold, as `full_pass`, batches in which each of
        a client's examples comes once, over which F_k is taken. Without it F_k is taken
        over the round's batches, which is the same for one epoch.

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `build_fed_avg`'s. Only
      sums leave the clients.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    QHParams(q=q, lipschitz=lipschitz, loss_reduction=loss_reduction)
    if lipschitz is None:
        raise HyperparameterError("lipschitz", lipschitz, f"a number {POSITIVE}")
    client_work = client_works.build_loss_weighted_training_client_work(
        model_fn,
        client_optimizer,
        loss_floor=LOSS_FLOOR,
        loss_reduction=loss_reduction,
        learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
        with_full_pass=with_full_pass,
    )
    return algorithm.compose(
        model_fn,
        client_work,
        server_optimizer or tff.learning.optimizers.build_sgdm(1.0),
        model_distributor=model_distributor,
        model_aggregator=aggregators.QFairFactory(q, lipschitz),
    )


def _build_stages(task, hparams):
    lipschitz = hparams.lipschitz
    if lipschitz is None:
        lipschitz = 1 / hparams.client_learning_rate
    process = build_q_fed_avg(
        task.model,
        algorithm.build_client_optimizer(hparams),
        algorithm.server_optimizer_from(hparams),
        q=hparams.q,
        lipschitz=lipschitz,
        loss_reduction=hparams.loss_reduction,
        client_learning_rate_decay=hparams.client_learning_rate_decay,
        with_num_examples=algorithm.tells_num_examples(hparams, task.model),
        with_full_pass=algorithm.needs_full_pass(hparams),
    )
    return algorithm.single_stage("qfedavg", process, hparams)


Q_FED_AVG = algorithm.Algorithm(
    name="qfedavg",
    title="q-FedAvg",
    summary="FedAvg that weighs clients by powers of their losses, for fairness",
    paper="Li et al., 2020, arXiv 1905.10497",
    hparams=QFedAvgHParams,
    build_stages=_build_stages,
)
