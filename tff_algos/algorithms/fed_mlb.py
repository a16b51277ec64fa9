"""FedMLB: local features that also suit the server's later blocks; with momentum too.

Kim, Kim, Han: "Multi-Level Branched Regularization for Federated Learning", ICML 2022,
arXiv 2207.06936. With the weights of both regularisers 0 and no clipping it is FedAvg.
FedMLBM is FedMLB with momentum at the server, which with momentum 0 is FedMLB.
"""

import functools
import types

import attrs
import tensorflow_federated as tff

from tff_algos import client_works
from tff_algos.algorithms import algorithm
from tff_algos.client_works.fed_mlb_training import BranchLosses
from tff_algos.hyperparameters import NON_NEGATIVE, POSITIVE, hparam
from tff_algos.models.block_model import BlockModel

_PAPER = "Kim et al., 2022, arXiv 2207.06936"


@attrs.frozen(kw_only=True, slots=False)
class BranchHParams:
    """What FedMLB has and FedAvg has not: lambda_1 to lambda_3, T, clipping."""

    local_loss_weight: float = hparam(
        1.0, float, NON_NEGATIVE, "weight of the local model's loss", "lambda_1"
    )
    hybrid_loss_weight: float = hparam(
        1.0, float, NON_NEGATIVE, "weight of the hybrid models' losses", "lambda_2"
    )
    distillation_weight: float = hparam(
        1.0,
        float,
        NON_NEGATIVE,
        "weight of the divergence from the hybrid models' predictions",
        "lambda_3",
    )
    distillation_temperature: float = hparam(
        1.0, float, POSITIVE, "temperature of the predictions", "T"
    )
    gradient_clip_norm: float | None = hparam(
        None, float, POSITIVE, "largest L2 norm of a client's gradient (no limit)"
    )

    def losses(self) -> BranchLosses:
        """Returns the parts of a client's objective."""
        return BranchLosses(
            local_weight=self.local_loss_weight,
            hybrid_weight=self.hybrid_loss_weight,
            distillation_weight=self.distillation_weight,
            temperature=self.distillation_temperature,
        )


@attrs.frozen(kw_only=True)
class FedMlbHParams(
    BranchHParams, algorithm.LocalTrainingHParams, algorithm.ServerOptimizerHParams
):
    """FedMLB: FedAvg's, and those of the branches."""


@attrs.frozen(kw_only=True)
class FedMlbMHParams(
    BranchHParams, algorithm.LocalTrainingHParams, algorithm.ServerMomentumHParams
):
    """FedMLBM: FedMLB's, and beta_1."""


def build_fed_mlb(
    model: BlockModel,
    client_optimizer: tff.learning.optimizers.Optimizer,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    *,
    local_loss_weight: float = 1.0,
    hybrid_loss_weight: float = 1.0,
    distillation_weight: float = 1.0,
    distillation_temperature: float = 1.0,
    gradient_clip_norm: float | None = 10.0,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    client_learning_rate_decay: float = 1.0,
    model_distributor: tff.learning.templates.DistributionProcess | None = None,
    model_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
) -> tff.learning.templates.LearningProcess:
    """Builds FedMLB.

    With q the local logits and q_i those of the server's blocks after i on the output
    of the local block i, a client minimises lambda_1 * f(q) + lambda_2 * mean f(q_i) +
    lambda_3 * mean KL(softmax(q_i / T) || softmax(q / T)). The server's blocks stay as
    they are; gradients flow through them.

    Args:
      model: A `tff_algos.block_model.BlockModel` of a classifier, which gives logits.
      client_optimizer: The optimizer of local steps, one per batch.
      server_optimizer: Takes the mean model delta for a gradient; SGD with learning
        rate 1 by default.
      local_loss_weight: lambda_1, >= 0.
      hybrid_loss_weight: lambda_2, >= 0.
      distillation_weight: lambda_3, >= 0.
      distillation_temperature: T, > 0.
      gradient_clip_norm: Largest L2 norm of a step's gradient, > 0; None for no limit.
      client_weighting: Whether clients weigh by the examples they processed or
        all alike.
      client_learning_rate_decay: Factor on the client learning rate after every
        round, in (0, 1].
      model_distributor: Instead of a plain broadcast.
      model_aggregator: Instead of the weighted mean.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_fed_avg`.

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `build_fed_avg`'s.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `model` is no block model.
    """
    hparams = BranchHParams(
        local_loss_weight=local_loss_weight,
        hybrid_loss_weight=hybrid_loss_weight,
        distillation_weight=distillation_weight,
        distillation_temperature=distillation_temperature,
        gradient_clip_norm=gradient_clip_norm,
    )
    client_work = client_works.build_multi_level_training_client_work(
        model,
        client_optimizer,
        hparams.losses(),
        gradient_clip_norm=gradient_clip_norm,
        client_weighting=client_weighting,
        learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
    return algorithm.compose(
        model,
        client_work,
        server_optimizer or tff.learning.optimizers.build_sgdm(1.0),
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )


def build_fed_mlb_m(
    model: BlockModel,
    client_optimizer: tff.learning.optimizers.Optimizer,
    *,
    server_learning_rate: float = 1.0,
    server_momentum: float = 0.9,
    **kwargs,
) -> tff.learning.templates.LearningProcess:
    """Builds FedMLB with heavy-ball momentum at the server.

    Args:
      model: As in `build_fed_mlb`.
      client_optimizer: As in `build_fed_mlb`.
      server_learning_rate: eta_g, >= 0.
      server_momentum: beta_1, in [0, 1).
      **kwargs: The other arguments of `build_fed_mlb`.

    Returns:
      As `build_fed_mlb`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    return build_fed_mlb(
        model,
        client_optimizer,
        algorithm.build_momentum_optimizer(server_learning_rate, server_momentum),
        **kwargs,
    )


def _build_stages(name, server_optimizer, task, hparams):
    process = build_fed_mlb(
        task.model,
        algorithm.build_client_optimizer(hparams),
        server_optimizer(hparams),
        local_loss_weight=hparams.local_loss_weight,
        hybrid_loss_weight=hparams.hybrid_loss_weight,
        distillation_weight=hparams.distillation_weight,
        distillation_temperature=hparams.distillation_temperature,
        gradient_clip_norm=hparams.gradient_clip_norm,
        client_weighting=algorithm.client_weighting(hparams),
        client_learning_rate_decay=hparams.client_learning_rate_decay,
        with_num_examples=algorithm.tells_num_examples(hparams, task.model),
    )
    return algorithm.single_stage(name, process, hparams)


# As in the authors' code.
_SETTINGS = types.MappingProxyType({algorithm.EVERY_TASK: {"gradient_clip_norm": 10.0}})

FED_MLB = algorithm.Algorithm(
    name="fedmlb",
    title="FedMLB",
    summary="FedAvg with features that suit the server's later blocks as well",
    paper=_PAPER,
    hparams=FedMlbHParams,
    build_stages=functools.partial(
        _build_stages, "fedmlb", algorithm.server_optimizer_from
    ),
    settings=_SETTINGS,
)

FED_MLB_M = algorithm.Algorithm(
    name="fedmlbm",
    title="FedMLBM",
    summary="FedMLB with momentum at the server",
    paper=_PAPER,
    hparams=FedMlbMHParams,
    build_stages=functools.partial(
        _build_stages, "fedmlbm", algorithm.momentum_optimizer_from
    ),
    settings=_SETTINGS,
)
