"""MOON: features near the server's and away from the client's past; and MOONM.

Li, He, Song: "Model-Contrastive Federated Learning", CVPR 2021, arXiv 2103.16257. MOONM
adds server momentum.

A round is FedAvg's with another local objective. With s and p the cosines of a batch's
features z(y) with those of the server's model, z(w), and of the client's own model after
its last round, z(w_k) (the server's in its first):

    client k minimizes  f(y) + mu * l(y)
                        l = -log(exp(s/tau) / (exp(s/tau) + exp(p/tau)))

Reduces to: FedAvg with mu = 0; so does each client's first round. MOONM with beta_1 = 0
is MOON.

Cost per round: FedAvg's communication. A client remembers one model, and a local step
evaluates three models forward.
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
from tff_algos.models import BlockModel
from tff_algos.optimizers import build_heavy_ball

ContrastiveStrength = Annotated[float, hparam(low=0, symbol="mu")]
ContrastiveTemperature = Annotated[float, hparam(above=0, symbol="tau")]


@checked
def build_moon(
    model_fn: BlockModel,
    client_optimizer_fn: Optimizer,
    server_optimizer_fn: Optimizer | None = None,
    *,
    contrastive_strength: ContrastiveStrength = 1.0,
    contrastive_temperature: ContrastiveTemperature = 0.5,
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds MOON.

    Args:
      model_fn: A `tff_algos.models.BlockModel`; its features are the input of its last
        layer that has weights.
      client_optimizer_fn: As in `build_fed_avg`, and so is every argument not listed
        here.
      contrastive_strength: Weight of the contrastive loss.
      contrastive_temperature: Temperature of the contrastive loss.

    Returns:
      A `tff.learning.templates.LearningProcess` typed as `build_scaffold`'s; a row is
      `seen` (bool), `weights`, those of the client after its last round, and
      `statistics`, where the model has any.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `model_fn` is not a block model.
    """
    client_work = client_works.build_contrastive_training_client_work(
        model_fn,
        client_optimizer_fn,
        contrastive_strength=contrastive_strength,
        contrastive_temperature=contrastive_temperature,
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
def build_moon_m(
    model_fn: BlockModel,
    client_optimizer_fn: Optimizer,
    *,
    contrastive_strength: ContrastiveStrength = 1.0,
    contrastive_temperature: ContrastiveTemperature = 0.5,
    server_learning_rate: ServerLearningRate = 1.0,
    server_momentum: ServerMomentum = 0.9,
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds MOONM: MOON with heavy-ball momentum at the server.

    Args:
      model_fn: As in `build_moon`, and so is every argument not listed here.
      server_learning_rate: Server learning rate.
      server_momentum: Momentum of the server's step; 0 is MOON.

    Returns:
      As `build_moon`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `model_fn` is not a block model.
    """
    return build_moon(
        model_fn,
        client_optimizer_fn,
        build_heavy_ball(server_learning_rate, server_momentum),
        contrastive_strength=contrastive_strength,
        contrastive_temperature=contrastive_temperature,
        client_weighting=client_weighting,
        client_learning_rate_decay=client_learning_rate_decay,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
