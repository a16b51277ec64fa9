"""FedProx: FedAvg whose clients are held near the server's model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in
Heterogeneous Networks", 2020, arXiv 1812.06127.

A client minimises its loss plus mu/2 * ||y - w||^2, w the server's model. With
mu = 0 FedProx is FedAvg; so it is with one local step, whatever mu, since the
term vanishes at y = w.

`tff.learning.algorithms.build_weighted_fed_prox` of TFF 0.87.0 adds mu * (w - y) to
the gradient, the opposite sign, which drives clients away from the server's model;
this is the paper's.
"""

import functools

import attrs
import tensorflow_federated as tff

from tff_algos import client_works
from tff_algos.algorithms import algorithm
from tff_algos.hyperparameters import NON_NEGATIVE, hparam, switch
from tff_algos.models.local_model import ModelOrFn

_PAPER = "Li et al., 2020, arXiv 1812.06127"


@attrs.frozen(kw_only=True, slots=False)
class ProximalHParams(algorithm.LocalTrainingHParams):
    """Local training with a proximal term."""

    proximal_strength: float = hparam(
        0.01,
        float,
        NON_NEGATIVE,
        "mu, in the penalty (mu/2) * ||w - w_server||^2",
        "mu",
    )
    prox_half: bool = switch(
        True,
        "the 1/2 in the penalty; without it mu * ||w - w_server||^2, as in the code of "
        "Hu et al.",
    )


@attrs.frozen(kw_only=True)
class FedProxHParams(ProximalHParams, algorithm.ServerOptimizerHParams):
    """FedProx: FedAvg's, and mu."""


@attrs.frozen(kw_only=True)
class FedProxMHParams(ProximalHParams, algorithm.ServerMomentumHParams):
    """FedProxM: FedAvgM's, and mu."""


def build_fed_prox(
    model_fn: ModelOrFn,
    client_optimizer: tff.learning.optimizers.Optimizer,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    *,
    proximal_strength: float,
    prox_half: bool = True,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    client_learning_rate_decay: float = 1.0,
    model_distributor: tff.learning.templates.DistributionProcess | None = None,
    model_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
) -> tff.learning.templates.LearningProcess:
    """Builds FedProx.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      client_optimizer: The optimizer of local steps, one per batch; its gradient
        is that of the batch's mean loss plus `mu * (y - w)`.
      server_optimizer: Takes the mean model delta for a gradient; SGD with
        learning rate 1 by default.
      proximal_strength: mu, loss per squared weight, >= 0; 0 is FedAvg.
      prox_half: Whether the penalty is mu/2 * ||y - w||^2, as in the paper, or mu * ||y -
        w||^2, as in the code of Hu et al. (arXiv 2006.11489).
      client_weighting: Whether clients weigh by the examples they processed or
        all alike.
      client_learning_rate_decay: Factor on the client learning rate after every
        round, in (0, 1].
      model_distributor: Instead of a plain broadcast.
      model_aggregator: Instead of the weighted mean.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_prox`.
      with_num_examples: As in `build_fed_avg`.

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `build_fed_avg`'s.

    Raises:
      HyperparameterError: If `proximal_strength` is negative or not finite.
    """
    ProximalHParams(proximal_strength=proximal_strength, prox_half=prox_half)
    client_work = client_works.build_local_training_client_work(
        model_fn,
        client_optimizer,
        client_weighting=client_weighting,
        proximal_strength=proximal_strength if prox_half else 2 * proximal_strength,
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


def build_fed_prox_m(
    model_fn: ModelOrFn,
    client_optimizer: tff.learning.optimizers.Optimizer,
    *,
    proximal_strength: float,
    server_learning_rate: float = 1.0,
    server_momentum: float = 0.9,
    **kwargs,
) -> tff.learning.templates.LearningProcess:
    """Builds FedProx with heavy-ball momentum at the server.

    Args:
      model_fn: As in `build_fed_prox`.
      client_optimizer: As in `build_fed_prox`.
      proximal_strength: mu, loss per squared weight, >= 0; 0 is FedAvgM.
      server_learning_rate: eta_g, >= 0.
      server_momentum: beta_1, in [0, 1); 0 is FedProx.
      **kwargs: The other arguments of `build_fed_prox`.

    Returns:
      As `build_fed_avg`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    return build_fed_prox(
        model_fn,
        client_optimizer,
        algorithm.build_momentum_optimizer(server_learning_rate, server_momentum),
        proximal_strength=proximal_strength,
        **kwargs,
    )


def _build_stages(name, server_optimizer, task, hparams):
    process = build_fed_prox(
        task.model,
        algorithm.build_client_optimizer(hparams),
        server_optimizer(hparams),
        proximal_strength=hparams.proximal_strength,
        prox_half=hparams.prox_half,
        client_weighting=algorithm.client_weighting(hparams),
        client_learning_rate_decay=hparams.client_learning_rate_decay,
        with_num_examples=algorithm.tells_num_examples(hparams, task.model),
    )
    return algorithm.single_stage(name, process, hparams)


FED_PROX = algorithm.Algorithm(
    name="fedprox",
    title="FedProx",
    summary="FedAvg with a proximal term that damps client drift",
    paper=_PAPER,
    hparams=FedProxHParams,
    build_stages=functools.partial(
        _build_stages, "fedprox", algorithm.server_optimizer_from
    ),
)

FED_PROX_M = algorithm.Algorithm(
    name="fedproxm",
    title="FedProxM",
    summary="FedProx with momentum at the server",
    paper=_PAPER,
    hparams=FedProxMHParams,
    build_stages=functools.partial(
        _build_stages, "fedproxm", algorithm.momentum_optimizer_from
    ),
)
