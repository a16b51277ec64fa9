"""FedMLB: local features that also suit the server's later blocks; and FedMLBM.

Kim, Kim, Han: "Multi-Level Branched Regularization for Federated Learning", ICML 2022,
arXiv 2207.06936. FedMLBM adds server momentum.

A round is FedAvg's with another local objective. With q the local logits and q_i those
of the server's blocks after i on the output of the local block i:

    client k minimizes  lambda_1 * f(q) + lambda_2 * mean_i f(q_i)
                        + lambda_3 * mean_i KL(softmax(q_i / T) || softmax(q / T))

The server's blocks stay as they are; gradients flow through them.

Reduces to: FedAvg with lambda_1 = 1, lambda_2 = lambda_3 = 0 and no clipping. FedMLBM
with beta_1 = 0 is FedMLB.

Cost per round: FedAvg's communication. A local step evaluates one hybrid model per
split (by default, after every block but the last), forward and backward.
"""

from collections.abc import Sequence
from typing import Annotated

from tff_algos import client_works
from tff_algos.algorithms.arguments import (
    BY_NUM_EXAMPLES,
    ClientLearningRateDecay,
    ClientWeighting,
    Distributor,
    GradientClipNorm,
    LearningProcess,
    MetricsAggregator,
    Optimizer,
    ServerLearningRate,
    ServerMomentum,
    WeightedAggregator,
)
from tff_algos.algorithms.composition import compose
from tff_algos.client_works import BranchLosses
from tff_algos.hyperparameters import Form, HyperparameterError, checked, hparam
from tff_algos.models import BlockModel
from tff_algos.optimizers import build_heavy_ball

LocalLossWeight = Annotated[float, hparam(low=0, symbol="lambda_1")]
HybridLossWeight = Annotated[float, hparam(low=0, symbol="lambda_2")]
DistillationWeight = Annotated[float, hparam(low=0, symbol="lambda_3")]
DistillationTemperature = Annotated[float, hparam(above=0, symbol="T")]
_SPLITS = Form("[1-9][0-9]*(,[1-9][0-9]*)*", "numbers of blocks, from 1, such as 1,3")


def _check_splits(splits: str | Sequence[int]) -> None:
    if not isinstance(splits, Sequence):
        raise HyperparameterError("splits", splits, _SPLITS.expected)
    numbers = splits if isinstance(splits, str) else ",".join(map(str, splits))
    _SPLITS.check("splits", numbers)
    if len(set(_numbers(numbers))) < len(_numbers(numbers)):
        raise HyperparameterError("splits", numbers, "each number once")


def _numbers(splits: str | Sequence[int] | None) -> tuple[int, ...] | None:
    if splits is None:
        return None
    return tuple(map(int, splits.split(",") if isinstance(splits, str) else splits))


Splits = Annotated[str | None, hparam(form=_SPLITS, check=_check_splits)]


@checked
def build_fed_mlb(
    model_fn: BlockModel,
    client_optimizer_fn: Optimizer,
    server_optimizer_fn: Optimizer | None = None,
    *,
    local_loss_weight: LocalLossWeight = 1.0,
    hybrid_loss_weight: HybridLossWeight = 1.0,
    distillation_weight: DistillationWeight = 1.0,
    distillation_temperature: DistillationTemperature = 1.0,
    splits: Splits = None,
    gradient_clip_norm: GradientClipNorm = 10.0,
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds FedMLB.

    Args:
      model_fn: A `tff_algos.models.BlockModel` of a classifier, whose output is logits.
      client_optimizer_fn: As in `build_fed_avg`, and so is every argument not listed
        here.
      local_loss_weight: Weight of the local model's loss.
      hybrid_loss_weight: Weight of the hybrid models' losses.
      distillation_weight: Weight of the divergence from the hybrid models' predictions.
      distillation_temperature: Temperature of the predictions.
      splits: Numbers of the blocks, from 1, after which the local model branches into
        the server's blocks, such as 1,3; by default all blocks but the last.
      gradient_clip_norm: Largest L2 norm of a local step's gradient, 10 as in the
        authors' code; None for no limit.

    Returns:
      As `build_fed_avg`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `model_fn` is not a block model.
    """
    client_work = client_works.build_multi_level_training_client_work(
        model_fn,
        client_optimizer_fn,
        BranchLosses(
            local_loss_weight=local_loss_weight,
            hybrid_loss_weight=hybrid_loss_weight,
            distillation_weight=distillation_weight,
            distillation_temperature=distillation_temperature,
            splits=_numbers(splits),
        ),
        gradient_clip_norm=gradient_clip_norm,
        client_weighting=client_weighting,
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
def build_fed_mlb_m(
    model_fn: BlockModel,
    client_optimizer_fn: Optimizer,
    *,
    local_loss_weight: LocalLossWeight = 1.0,
    hybrid_loss_weight: HybridLossWeight = 1.0,
    distillation_weight: DistillationWeight = 1.0,
    distillation_temperature: DistillationTemperature = 1.0,
    splits: Splits = None,
    gradient_clip_norm: GradientClipNorm = 10.0,
    server_learning_rate: ServerLearningRate = 1.0,
    server_momentum: ServerMomentum = 0.9,
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds FedMLBM: FedMLB with heavy-ball momentum at the server.

    Args:
      model_fn: As in `build_fed_mlb`, and so is every argument not listed here.
      server_learning_rate: Server learning rate.
      server_momentum: Momentum of the server's step; 0 is FedMLB.

    Returns:
      As `build_fed_avg`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `model_fn` is not a block model.
    """
    return build_fed_mlb(
        model_fn,
        client_optimizer_fn,
        build_heavy_ball(server_learning_rate, server_momentum),
        local_loss_weight=local_loss_weight,
        hybrid_loss_weight=hybrid_loss_weight,
        distillation_weight=distillation_weight,
        distillation_temperature=distillation_temperature,
        splits=splits,
        gradient_clip_norm=gradient_clip_norm,
        client_weighting=client_weighting,
        client_learning_rate_decay=client_learning_rate_decay,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
