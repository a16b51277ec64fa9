"""MIFA: the mean over all clients of each one's latest update; and MIFAM.

Gu, Huang, Zhang, Huang: "Fast Federated Learning in the Presence of Arbitrary Device
Unavailability", 2021, arXiv 2106.04159. MIFAM adds server momentum.

A round; the server keeps a row G_k for each of N clients, zero before its first round:

    client k:  delta_k as in FedAvg
    server:    G_k <- delta_k for the cohort;  w <- w - eta_g * (1/N) * sum_i G_i

Clients that are unavailable count with what they sent last.

Reduces to: FedAvg with uniform weights if all clients take part in every round. MIFAM
with beta_1 = 0 is MIFA.

Cost per round: FedAvg's communication; the server keeps N updates and sees each
client's update by itself.
"""

from typing import Annotated

from tff_algos import aggregators, client_works
from tff_algos.aggregators.latest_updates import MeanOver, MemoryDtype
from tff_algos.algorithms.arguments import (
    UNIFORM,
    ClientLearningRateDecay,
    Distributor,
    LearningProcess,
    MetricsAggregator,
    NumClients,
    Optimizer,
    ServerLearningRate,
    ServerMomentum,
)
from tff_algos.algorithms.composition import compose
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import ModelOrFn
from tff_algos.optimizers import build_heavy_ball

MemoryDtypeChoice = Annotated[MemoryDtype | None, hparam()]
_MeanOver = Annotated[MeanOver, hparam()]
_WaitForAll = Annotated[bool, hparam()]


@checked
def build_mifa(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    server_optimizer_fn: Optimizer | None = None,
    *,
    num_clients: NumClients,
    mean_over: _MeanOver = "all",
    wait_for_all: _WaitForAll = False,
    memory_dtype: MemoryDtypeChoice = None,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds MIFA.

    Where the client learning rate decays, what the server remembers decays with it. See
    `aggregators.LatestUpdatesFactory`.

    Args:
      model_fn: As in `build_fed_avg`, and so is every argument not listed here.
      client_optimizer_fn: The optimizer of local steps, one step per batch.
      server_optimizer_fn: Takes the mean as gradient; SGD with learning rate 1 by
        default.
      num_clients: N, all clients in the population.
      mean_over: Denominator of MIFA's mean: all N clients, or those seen so far.
      wait_for_all: Leave the trainable weights unchanged until every client has sent an
        update, the paper's other way to start.
      memory_dtype: Type of the updates that the server remembers; None for the weights'.

    Returns:
      A `tff.learning.templates.LearningProcess` whose `next` has the type
      `(<S@SERVER, {<examples=B*, client_index=int32*>}@CLIENTS> -> <state=S@SERVER,
      metrics=M@SERVER>)`: beside its batches a client's data hold its number in [0, N),
      as a sequence of one element (`tff_algos.index_dataset`).

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    client_work = client_works.build_local_training_client_work(
        model_fn,
        client_optimizer_fn,
        client_weighting=UNIFORM,
        client_learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
        with_client_index=True,
    )
    return compose(
        model_fn,
        client_work,
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=aggregators.LatestUpdatesFactory(
            num_clients,
            mean_over=mean_over,
            wait_for_all=wait_for_all,
            decay=client_learning_rate_decay,
            memory_dtype=memory_dtype,
        ),
    )


@checked
def build_mifa_m(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    *,
    num_clients: NumClients,
    mean_over: _MeanOver = "all",
    wait_for_all: _WaitForAll = False,
    memory_dtype: MemoryDtypeChoice = None,
    server_learning_rate: ServerLearningRate = 1.0,
    server_momentum: ServerMomentum = 0.9,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds MIFAM: MIFA with heavy-ball momentum at the server.

    Args:
      model_fn: As in `build_mifa`, and so is every argument not listed here.
      server_learning_rate: Server learning rate.
      server_momentum: Momentum of the server's step; 0 is MIFA.

    Returns:
      As `build_mifa`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    return build_mifa(
        model_fn,
        client_optimizer_fn,
        build_heavy_ball(server_learning_rate, server_momentum),
        num_clients=num_clients,
        mean_over=mean_over,
        wait_for_all=wait_for_all,
        memory_dtype=memory_dtype,
        client_learning_rate_decay=client_learning_rate_decay,
        model_distributor=model_distributor,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
