"""Federated Averaging (FedAvg), with and without server momentum (FedAvgM).

McMahan, Moore, Ramage, Hampson, Agueera y Arcas: "Communication-Efficient Learning of
Deep Networks from Decentralized Data", 2017, arXiv 1602.05629. Server momentum: Hsu,
Qi, Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification", 2019, arXiv 1909.06335.

A round, w the server's model and p_k the weights of the cohort's clients, sum p_k = 1:

    client k:  y <- w;  for each batch b: y <- y - eta * grad f_b(y);  delta_k = w - y
    server:    u = sum_k p_k delta_k
    FedAvg     w <- w - eta_g * u
    FedAvgM    v <- beta_1 * v + u;  w <- w - eta_g * v      (no factor 1 - beta_1)

Reduces to: with one full-batch local step FedSGD with the client's learning rate; with
beta_1 = 0 FedAvgM is FedAvg.

Cost per round: a client receives and sends one model; the server keeps one (FedAvgM:
two).
"""

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
from tff_algos.hyperparameters import checked
from tff_algos.models import ModelOrFn
from tff_algos.optimizers import build_heavy_ball


@checked
def build_fed_avg(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    server_optimizer_fn: Optimizer | None = None,
    *,
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds Federated Averaging.

    It computes the same numbers as `tff.learning.algorithms.build_weighted_fed_avg`.
    Beyond it, uniform weights leave out clients without examples, clients whose update
    is not finite are excluded and counted, and the client learning rate can decay. Its
    `get_hparams` are the server optimizer's; TFF's are the client optimizer's as well.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function that
        returns a `tff.learning.models.VariableModel`.
      client_optimizer_fn: The optimizer of local steps, one step per batch.
      server_optimizer_fn: Takes the mean model delta as gradient; by default SGD with
        learning rate 1, which moves the server's model to the clients' mean.
      client_weighting: How clients are weighted: by the examples in their batches (by
        n_k with `with_num_examples`), or all equally.
      client_learning_rate_decay: Decay factor of the client learning rate per round.
      model_distributor: Replaces the plain broadcast.
      model_aggregator: Replaces the weighted mean.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: Whether each client's data include n_k, the number of its
        examples: `{"examples": batches, "num_examples": <dataset of one int64>}`.
        Clients, and batch-normalization statistics, are then weighted by it instead of
        by the examples in the batches.

    Returns:
      A `tff.learning.templates.LearningProcess` whose `next` has the type
      `(<S@SERVER, {B*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    client_work = client_works.build_local_training_client_work(
        model_fn,
        client_optimizer_fn,
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
def build_fed_avg_m(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    *,
    server_learning_rate: ServerLearningRate = 1.0,
    server_momentum: ServerMomentum = 0.9,
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds FedAvgM: FedAvg with heavy-ball momentum at the server.

    Args:
      model_fn: As in `build_fed_avg`, and so is every argument not listed here.
      client_optimizer_fn: The optimizer of local steps, one step per batch.
      server_learning_rate: Server learning rate.
      server_momentum: Momentum of the server's step; 0 is FedAvg.

    Returns:
      As `build_fed_avg`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    return build_fed_avg(
        model_fn,
        client_optimizer_fn,
        build_heavy_ball(server_learning_rate, server_momentum),
        client_weighting=client_weighting,
        client_learning_rate_decay=client_learning_rate_decay,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
