"""FedMGDA+ and its relatives: server steps that, to first order, increase no client's loss.

Hu, Shaloudegi, Zhang, Yu: "Federated Learning Meets Multi-Objective Optimization", 2022,
arXiv 2006.11489.

Clients train as in FedAvg. The server combines their model deltas with the weights that
minimize the norm of the combination, which is then a common descent direction, within a
box of half-width epsilon around the usual weights lambda_0. A round, u_i the model deltas
delta_i or, normalized, their directions delta_i / ||delta_i||:

    lambda = argmin || sum_i lambda_i u_i ||
             with sum_i lambda_i = 1, lambda >= 0, |lambda_i - lambda_0i| <= epsilon
    w <- w - eta_g * sum_i lambda_i u_i

                 u_i          weights         with epsilon = 0
    FedMGDA      deltas       least norm      FedAvg
    FedMGDA+     directions   least norm      FedAvg-n
    MGDA-Prox    directions   least norm      FedAvg-n, clients with FedProx's term
    FedAvg-n     directions   lambda_0

Reduces to: with one client FedMGDA is FedAvg. With two clients of equal weight FedMGDA+
is FedAvg-n, whatever epsilon. With mu = 0, or one local step, MGDA-Prox is FedMGDA+. Only
FedMGDA depends on the length of a client's update.

    aggregators/min_norm_factory.py      the aggregation; solvers/min_norm.py the program

Cost per round: FedAvg's communication. The server sees each client's update by itself
and holds the cohort's updates at once (`aggregators.MinNormFactory`).
"""

from typing import Annotated, Literal

from tff_algos import aggregators
from tff_algos.aggregators.min_norm_rule import ZeroUpdatePolicy
from tff_algos.algorithms.arguments import (
    UNIFORM,
    ClientLearningRateDecay,
    ClientWeighting,
    Distributor,
    LearningProcess,
    MetricsAggregator,
    Optimizer,
)
from tff_algos.algorithms.fed_avg import build_fed_avg
from tff_algos.algorithms.fed_prox import ProxHalf, ProximalStrength, build_fed_prox
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import ModelOrFn

NormalizeAt = Literal["server", "clients"]

Epsilon = Annotated[float, hparam(low=0, symbol="epsilon")]
Cap = Annotated[float | None, hparam(above=0, high=1, symbol="C")]
ZeroUpdatePolicyChoice = Annotated[ZeroUpdatePolicy, hparam()]
MedianNormLr = Annotated[bool, hparam()]


@checked
def build_fed_mgda(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    server_optimizer_fn: Optimizer | None = None,
    *,
    epsilon: Epsilon = 1.0,
    cap: Cap = None,
    zero_update_policy: ZeroUpdatePolicyChoice = "exclude",
    client_weighting: ClientWeighting = UNIFORM,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds FedMGDA.

    Args:
      model_fn: As in `build_fed_avg`, and so is every argument not listed here.
      client_optimizer_fn: The optimizer of local steps, one step per batch.
      server_optimizer_fn: Takes the combined model delta as gradient; SGD with learning
        rate 1 by default.
      epsilon: How far a client's weight may be from its usual one, lambda_0 (see
        client_weighting); 1 for no limit.
      cap: Largest weight of a client; None for no limit.
      zero_update_policy: How to treat a numerically zero update: exclude drops the
        client, keep retains it: the combination is then zero if epsilon and cap permit.
      client_weighting: lambda_0: uniform, or by numbers of examples.

    Returns:
      As `build_fed_avg`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    return build_fed_avg(
        model_fn,
        client_optimizer_fn,
        server_optimizer_fn,
        client_weighting=client_weighting,
        client_learning_rate_decay=client_learning_rate_decay,
        model_distributor=model_distributor,
        model_aggregator=aggregators.MinNormFactory(
            epsilon, cap=cap, zero_update_policy=zero_update_policy
        ),
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )


@checked
def build_fed_mgda_plus(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    server_optimizer_fn: Optimizer | None = None,
    *,
    epsilon: Epsilon = 1.0,
    cap: Cap = None,
    zero_update_policy: ZeroUpdatePolicyChoice = "exclude",
    median_norm_lr: MedianNormLr = False,
    client_weighting: ClientWeighting = UNIFORM,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds FedMGDA+, which is MGDA-Prox without a proximal term.

    Args:
      model_fn: As in `build_fed_mgda`, and so is every argument not listed here.
      client_optimizer_fn: The optimizer of local steps, one step per batch.
      server_optimizer_fn: Takes the combined direction as gradient. Its length is at most
        one (with `median_norm_lr`, the median norm), so the learning rate bounds the
        length of a step of SGD. SGD with learning rate 1 by default.
      epsilon: As in `build_fed_mgda`; 0 is FedAvg-n.
      median_norm_lr: Multiply the combined direction by the median norm of the updates
        that it combines, an option of the authors' code; the result is then multiplied
        by the server learning rate.

    Returns:
      As `build_fed_avg`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    return build_mgda_prox(
        model_fn,
        client_optimizer_fn,
        server_optimizer_fn,
        proximal_strength=0.0,
        epsilon=epsilon,
        cap=cap,
        zero_update_policy=zero_update_policy,
        median_norm_lr=median_norm_lr,
        client_weighting=client_weighting,
        client_learning_rate_decay=client_learning_rate_decay,
        model_distributor=model_distributor,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )


@checked
def build_mgda_prox(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    server_optimizer_fn: Optimizer | None = None,
    *,
    proximal_strength: ProximalStrength = 0.1,
    prox_half: ProxHalf = True,
    epsilon: Epsilon = 1.0,
    cap: Cap = None,
    zero_update_policy: ZeroUpdatePolicyChoice = "exclude",
    median_norm_lr: MedianNormLr = False,
    client_weighting: ClientWeighting = UNIFORM,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds MGDA-Prox: FedMGDA+ with FedProx's term at the clients.

    Args:
      model_fn: As in `build_fed_mgda_plus`, and so is every argument not listed here.
      proximal_strength: As in `build_fed_prox`; 0 is FedMGDA+.
      prox_half: As in `build_fed_prox`.
      epsilon: As in `build_fed_mgda`; 0 is FedAvg-n with FedProx's term.

    Returns:
      As `build_fed_avg`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    return build_fed_prox(
        model_fn,
        client_optimizer_fn,
        server_optimizer_fn,
        proximal_strength=proximal_strength,
        prox_half=prox_half,
        client_weighting=client_weighting,
        client_learning_rate_decay=client_learning_rate_decay,
        model_distributor=model_distributor,
        model_aggregator=aggregators.MinNormFactory(
            epsilon,
            normalize=True,
            median_norm_lr=median_norm_lr,
            cap=cap,
            zero_update_policy=zero_update_policy,
        ),
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )


@checked
def build_fed_avg_n(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    server_optimizer_fn: Optimizer | None = None,
    *,
    normalize_at: Annotated[NormalizeAt, hparam()] = "server",
    client_weighting: ClientWeighting = UNIFORM,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds FedAvg-n: the mean of the directions of clients' updates.

    Clients whose update is zero are excluded.

    Args:
      model_fn: As in `build_fed_mgda_plus`, and so is every argument not listed here.
      normalize_at: Who normalizes updates: the server, which then sees each client's
        update, or the clients. The server then only needs the mean of updates, but
        must trust clients to normalize them.

    Returns:
      As `build_fed_avg`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    if normalize_at == "server":
        aggregator = aggregators.MinNormFactory(epsilon=0.0, normalize=True)
    else:
        aggregator = aggregators.NormalizedMeanFactory()
    return build_fed_avg(
        model_fn,
        client_optimizer_fn,
        server_optimizer_fn,
        client_weighting=client_weighting,
        client_learning_rate_decay=client_learning_rate_decay,
        model_distributor=model_distributor,
        model_aggregator=aggregator,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
