"""FedProx: FedAvg with a proximal term that keeps clients near the server's model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous
Networks", 2020, arXiv 1812.06127. FedProxM adds server momentum.

A round is FedAvg's with another local objective, w the server's model:

    client k minimizes  f(y) + mu/2 * ||y - w||^2
    a local step        y <- y - eta * (grad f_b(y) + mu * (y - w))

Reduces to: FedAvg with mu = 0, and with one local step, whatever mu, since the term
vanishes at y = w. FedProxM with beta_1 = 0 is FedProx.

`tff.learning.algorithms.build_weighted_fed_prox` of TFF 0.87.0 adds mu * (w - y) to the
gradient: the opposite sign, which drives clients away from the server's model.

Cost per round: FedAvg's.
"""

from typing import Annotated

from tff_algos import client_works
from tff_algos.algorithms.arguments import (
    BY_NUM_EXAMPLES,
    ClientLearningRateDecay,
    ClientWeighting,
    Distributor,
    LearningProcess,
    MetricsAggregator,
    Optimizer,
    ServerLearningRate,
    ServerMomentum,
    WeightedAggregator,
)
from tff_algos.algorithms.composition import compose
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import ModelOrFn
from tff_algos.optimizers import build_heavy_ball

ProximalStrength = Annotated[float, hparam(low=0, symbol="mu")]
ProxHalf = Annotated[bool, hparam()]


@checked
def build_fed_prox(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    server_optimizer_fn: Optimizer | None = None,
    *,
    proximal_strength: ProximalStrength = 0.01,
    prox_half: ProxHalf = True,
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds FedProx; FedAvg without a proximal term (`proximal_strength=0`).

    Args:
      model_fn: As in `build_fed_avg`, and so is every argument not listed here.
      client_optimizer_fn: The optimizer of local steps, one step per batch.
      server_optimizer_fn: Takes the mean model delta as gradient; SGD with learning
        rate 1 by default.
      proximal_strength: mu, in the penalty (mu/2) * ||y - w||^2 on the distance of
        local weights y from the server's w.
      prox_half: Keep the 1/2 in the penalty, as in the paper; without it the penalty is
        mu * ||y - w||^2, as in the code of Hu et al. (arXiv 2006.11489).

    Returns:
      As `build_fed_avg`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    client_work = client_works.build_local_training_client_work(
        model_fn,
        client_optimizer_fn,
        client_weighting=client_weighting,
        proximal_strength=proximal_strength if prox_half else 2 * proximal_strength,
        client_learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
    return compose(
        model_fn,
        client_work,
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )


@checked
def build_fed_prox_m(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    *,
    proximal_strength: ProximalStrength = 0.01,
    prox_half: ProxHalf = True,
    server_learning_rate: ServerLearningRate = 1.0,
    server_momentum: ServerMomentum = 0.9,
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds FedProxM: FedProx with heavy-ball momentum at the server.

    Args:
      model_fn: As in `build_fed_avg`, and so is every argument not listed here.
      client_optimizer_fn: The optimizer of local steps, one step per batch.
      proximal_strength: As in `build_fed_prox`; 0 is FedAvgM.
      prox_half: As in `build_fed_prox`.
      server_learning_rate: Server learning rate.
      server_momentum: Momentum of the server's step; 0 is FedProx.

    Returns:
      As `build_fed_avg`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    return build_fed_prox(
        model_fn,
        client_optimizer_fn,
        build_heavy_ball(server_learning_rate, server_momentum),
        proximal_strength=proximal_strength,
        prox_half=prox_half,
        client_weighting=client_weighting,
        client_learning_rate_decay=client_learning_rate_decay,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
