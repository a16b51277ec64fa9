"""MOON: features near the server's and away from the client's past; with momentum too.

Li, He, Song: "Model-Contrastive Federated Learning", CVPR 2021, arXiv 2103.16257. With
mu = 0 it is FedAvg; so is each client's first round. MOONM is MOON with momentum at the
server, which with momentum 0 is MOON.
"""

import functools

import attrs
import tensorflow_federated as tff

from tff_algos import client_works
from tff_algos.algorithms import algorithm
from tff_algos.hyperparameters import NON_NEGATIVE, POSITIVE, hparam
from tff_algos.models.block_model import BlockModel

_PAPER = "Li et al., 2021, arXiv 2103.16257"


@attrs.frozen(kw_only=True, slots=False)
class ContrastHParams:
    """What MOON has and FedAvg has not: mu, tau."""

    contrastive_strength: float = hparam(
        1.0, float, NON_NEGATIVE, "weight of the contrastive loss", "mu"
    )
    contrastive_temperature: float = hparam(
        0.5, float, POSITIVE, "temperature of the contrastive loss", "tau"
    )


@attrs.frozen(kw_only=True)
class MoonHParams(
    ContrastHParams, algorithm.LocalTrainingHParams, algorithm.ServerOptimizerHParams
):
    """MOON: FedAvg's, mu and tau."""


@attrs.frozen(kw_only=True)
class MoonMHParams(
    ContrastHParams, algorithm.LocalTrainingHParams, algorithm.ServerMomentumHParams
):
    """MOONM: MOON's, and beta_1."""


def build_moon(
    model: BlockModel,
    client_optimizer: tff.learning.optimizers.Optimizer,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    *,
    contrastive_strength: float,
    contrastive_temperature: float = 0.5,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    client_learning_rate_decay: float = 1.0,
    model_distributor: tff.learning.templates.DistributionProcess | None = None,
    model_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
) -> tff.learning.templates.LearningProcess:
    """Builds MOON.

    Clients minimise f + mu * l, l = -log(exp(s/tau) / (exp(s/tau) + exp(p/tau))), s and
    p the cosines of a batch's features with those of the server's model and of the
    client's own after its last round (the server's in its first).

    Args:
      model: A `tff_algos.block_model.BlockModel`; its features are what its last block
        takes.
      client_optimizer: The optimizer of local steps, one per batch.
      server_optimizer: Takes the mean model delta for a gradient; SGD with learning
        rate 1 by default.
      contrastive_strength: mu, >= 0.
      contrastive_temperature: tau, > 0.
      client_weighting: Whether clients weigh by the examples they processed or
        all alike.
      client_learning_rate_decay: Factor on the client learning rate after every
        round, in (0, 1].
      model_distributor: Instead of a plain broadcast.
      model_aggregator: Instead of the weighted mean.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_fed_avg`.

    Returns:
      A `tff.learning.templates.LearningProcess` typed as `build_scaffold`'s; a row is
      `seen` (bool) and `weights`, those of the client after its last round.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `model` is no block model.
    """
    ContrastHParams(
        contrastive_strength=contrastive_strength,
        contrastive_temperature=contrastive_temperature,
    )
    client_work = client_works.build_contrastive_training_client_work(
        model,
        client_optimizer,
        contrastive_strength=contrastive_strength,
        temperature=contrastive_temperature,
        client_weighting=client_weighting,
        learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
    return client_works.undo_rejected_rounds(
        algorithm.compose(
            model,
            client_work,
            server_optimizer or tff.learning.optimizers.build_sgdm(1.0),
            model_distributor=model_distributor,
            model_aggregator=model_aggregator,
        )
    )


def build_moon_m(
    model: BlockModel,
    client_optimizer: tff.learning.optimizers.Optimizer,
    *,
    server_learning_rate: float = 1.0,
    server_momentum: float = 0.9,
    **kwargs,
) -> tff.learning.templates.LearningProcess:
    """Builds MOON with heavy-ball momentum at the server.

    Args:
      model: As in `build_moon`.
      client_optimizer: As in `build_moon`.
      server_learning_rate: eta_g, >= 0.
      server_momentum: beta_1, in [0, 1).
      **kwargs: The other arguments of `build_moon`.

    Returns:
      As `build_moon`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    return build_moon(
        model,
        client_optimizer,
        algorithm.build_momentum_optimizer(server_learning_rate, server_momentum),
        **kwargs,
    )


def _build_stages(name, server_optimizer, task, hparams):
    process = build_moon(
        task.model,
        algorithm.build_client_optimizer(hparams),
        server_optimizer(hparams),
        contrastive_strength=hparams.contrastive_strength,
        contrastive_temperature=hparams.contrastive_temperature,
        client_weighting=algorithm.client_weighting(hparams),
        client_learning_rate_decay=hparams.client_learning_rate_decay,
        with_num_examples=algorithm.tells_num_examples(hparams, task.model),
    )
    return algorithm.single_stage(name, process, hparams)


# The weight that the authors give for it.
_SETTINGS = {"cifar10": {"contrastive_strength": 5.0}}

MOON = algorithm.Algorithm(
    name="moon",
    title="MOON",
    summary="FedAvg with features near the server's, away from the client's past",
    paper=_PAPER,
    hparams=MoonHParams,
    build_stages=functools.partial(
        _build_stages, "moon", algorithm.server_optimizer_from
    ),
    settings=_SETTINGS,
)

MOON_M = algorithm.Algorithm(
    name="moonm",
    title="MOONM",
    summary="MOON with momentum at the server",
    paper=_PAPER,
    hparams=MoonMHParams,
    build_stages=functools.partial(
        _build_stages, "moonm", algorithm.momentum_optimizer_from
    ),
    settings=_SETTINGS,
)
