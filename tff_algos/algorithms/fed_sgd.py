"""FedSGD: one full-batch gradient per sampled client and round.

McMahan, Moore, Ramage, Hampson, Agueera y Arcas: "Communication-Efficient Learning of
Deep Networks from Decentralized Data", 2017, arXiv 1602.05629.

A round, p_k the weights of the cohort's clients, sum p_k = 1:

    client k:  g_k = grad F_k(w), over all of its examples
    server:    w <- w - eta_g * sum_k p_k g_k

Reduces to: with every client in every round, weighted by examples, full-batch gradient
descent on the pooled data. With SGD it equals FedAvg with one full-batch local step.

Cost per round: a client receives one model and sends one gradient.
"""

import tensorflow_federated as tff

from tff_algos import client_works
from tff_algos.algorithms.arguments import (
    BY_NUM_EXAMPLES,
    ClientWeighting,
    Distributor,
    LearningProcess,
    MetricsAggregator,
    Optimizer,
    WeightedAggregator,
)
from tff_algos.algorithms.composition import compose
from tff_algos.hyperparameters import checked
from tff_algos.models import ModelOrFn


@checked
def build_fed_sgd(
    model_fn: ModelOrFn,
    server_optimizer_fn: Optimizer | None = None,
    *,
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
) -> LearningProcess:
    """Builds FedSGD.

    It computes the same numbers as `tff.learning.algorithms.build_fed_sgd`. Beyond it,
    clients can be weighted uniformly, and those whose gradient is not finite are
    excluded and counted.

    Args:
      model_fn: As in `build_fed_avg`, and so is every argument not listed here.
      server_optimizer_fn: Takes its step with the mean of the clients' gradients; SGD
        with learning rate 0.1 by default, as in TFF.

    Returns:
      As `build_fed_avg`. Each example of a client should occur once. How they are
      batched does not matter unless a batch's loss depends on more than the mean of its
      examples' losses, as with batch normalization, or of sequences, whose loss is the
      mean over tokens.

    Raises:
      HyperparameterError: If an argument is invalid.
    """
    client_work = client_works.build_full_gradient_client_work(
        model_fn,
        client_weighting=client_weighting,
        metrics_aggregator=metrics_aggregator,
    )
    return compose(
        model_fn,
        client_work,
        server_optimizer_fn or tff.learning.optimizers.build_sgdm(0.1),
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )
