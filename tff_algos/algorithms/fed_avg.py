"""Federated Averaging, with and without server momentum.

McMahan, Moore, Ramage, Hampson, Agueera y Arcas: "Communication-Efficient
Learning of Deep Networks from Decentralized Data", 2017, arXiv 1602.05629.
Momentum at the server: Hsu, Qi, Brown: "Measuring the Effects of Non-Identical
Data Distribution for Federated Visual Classification", 2019, arXiv 1909.06335.

Every client trains from the server's model; the server moves to the weighted
mean of the results. With one full-batch local step FedAvg is FedSGD with the
client's learning rate; with server momentum 0 FedAvgM is FedAvg.
"""

import functools
from collections.abc import Callable
from typing import Any

import attrs
import tensorflow_federated as tff

from tff_algos import client_works
from tff_algos.algorithms import algorithm
from tff_algos.models.local_model import ModelOrFn

_PAPER = "McMahan et al., 2017, arXiv 1602.05629"


@attrs.frozen(kw_only=True)
class FedAvgHParams(algorithm.LocalTrainingHParams, algorithm.ServerOptimizerHParams):
    """FedAvg: eta, E, B, S at the clients, eta_g at the server."""


@attrs.frozen(kw_only=True)
class FedAvgMHParams(algorithm.LocalTrainingHParams, algorithm.ServerMomentumHParams):
    """FedAvgM: FedAvg's, and beta_1."""


def build_fed_avg(
    model_fn: ModelOrFn,
    client_optimizer: tff.learning.optimizers.Optimizer,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    *,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    client_learning_rate_decay: float = 1.0,
    model_distributor: tff.learning.templates.DistributionProcess | None = None,
    model_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
) -> tff.learning.templates.LearningProcess:
    """Builds Federated Averaging.

    The same numbers as `tff.learning.algorithms.build_weighted_fed_avg`, and
    besides: uniform weights leave out clients without examples, invalid clients
    are counted, and the client learning rate can decay by the round.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      client_optimizer: The optimizer of local steps, one per batch.
      server_optimizer: Takes the mean model delta for a gradient; SGD with
        learning rate 1 by default, which moves the server's model to the mean.
      client_weighting: Whether clients weigh by the examples in their batches (or by
        n_k, see `with_num_examples`) or all alike.
      client_learning_rate_decay: Factor on the client learning rate after every
        round, in (0, 1].
      model_distributor: Instead of a plain broadcast.
      model_aggregator: Instead of the weighted mean.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: Whether clients' data tell n_k, by which clients (and statistics
        of batch normalization) then weigh instead of by the examples in their batches:
        `{"examples": batches, "num_examples": <data set of one int64>}`.

    Returns:
      A `tff.learning.templates.LearningProcess` whose `next` has the type
      `(<S@SERVER, {B*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`.
    """
    client_work = client_works.build_local_training_client_work(
        model_fn,
        client_optimizer,
        client_weighting=client_weighting,
        learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
    return algorithm.compose(
        model_fn,
        client_work,
        server_optimizer or tff.learning.optimizers.build_sgdm(1.0),
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )


def build_fed_avg_m(
    model_fn: ModelOrFn,
    client_optimizer: tff.learning.optimizers.Optimizer,
    *,
    server_learning_rate: float = 1.0,
    server_momentum: float = 0.9,
    **kwargs,
) -> tff.learning.templates.LearningProcess:
    """Builds FedAvg with heavy-ball momentum at the server.

    v <- beta_1 * v + u and w <- w - eta_g * v, u the mean model delta: no factor
    1 - beta_1. With `server_momentum` 0 it is FedAvg.

    Args:
      model_fn: As in `build_fed_avg`.
      client_optimizer: As in `build_fed_avg`.
      server_learning_rate: eta_g, >= 0.
      server_momentum: beta_1, in [0, 1).
      **kwargs: The other arguments of `build_fed_avg`.

    Returns:
      As `build_fed_avg`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    return build_fed_avg(
        model_fn,
        client_optimizer,
        algorithm.build_momentum_optimizer(server_learning_rate, server_momentum),
        **kwargs,
    )


def build_from(
    model: ModelOrFn,
    hparams: algorithm.LocalTrainingHParams,
    server_optimizer: Callable[[Any], tff.learning.optimizers.Optimizer],
    *,
    with_num_examples: bool | None = None,
) -> tff.learning.templates.LearningProcess:
    """Builds FedAvg as a record says, with the server optimizer made of it.

    Args:
      model: The model.
      hparams: The record.
      server_optimizer: Makes the server optimizer of the record.
      with_num_examples: As in `build_fed_avg`; None where the record decides.
    """
    if with_num_examples is None:
        with_num_examples = algorithm.tells_num_examples(hparams, model)
    return build_fed_avg(
        model,
        algorithm.build_client_optimizer(hparams),
        server_optimizer(hparams),
        client_weighting=algorithm.client_weighting(hparams),
        client_learning_rate_decay=hparams.client_learning_rate_decay,
        with_num_examples=with_num_examples,
    )


def _build_stages(name, server_optimizer, task, hparams):
    process = build_from(task.model, hparams, server_optimizer)
    return algorithm.single_stage(name, process, hparams)


FED_AVG = algorithm.Algorithm(
    name="fedavg",
    title="FedAvg",
    summary="mean of locally trained models",
    paper=_PAPER,
    hparams=FedAvgHParams,
    build_stages=functools.partial(
        _build_stages, "fedavg", algorithm.server_optimizer_from
    ),
)

FED_AVG_M = algorithm.Algorithm(
    name="fedavgm",
    title="FedAvgM",
    summary="FedAvg with momentum at the server",
    paper="Hsu et al., 2019, arXiv 1909.06335",
    hparams=FedAvgMHParams,
    build_stages=functools.partial(
        _build_stages, "fedavgm", algorithm.momentum_optimizer_from
    ),
)
