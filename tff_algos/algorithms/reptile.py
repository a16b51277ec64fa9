"""Reptile: K local steps on every client, then a server step toward their results.

Nichol, Achiam, Schulman: "On First-Order Meta-Learning Algorithms", 2018, arXiv
1803.02999; as a federated algorithm: Jiang, Konecny, Rush, Kannan: "Improving Federated
Learning Personalization via Model Agnostic Meta Learning", 2019, arXiv 1909.12488.

A round of Reptile(K), S the clients of the cohort:

    client k:  y <- w;  K times: y <- y - eta * grad f_b(y);  delta_k = w - y
    server:    w <- the server optimizer's step with the gradient mean_k delta_k

Reduces to: uniform FedAvg where E epochs are K steps on every client; Reptile(1) on
full batches is uniform FedSGD with learning rate eta * eta_g.

Cost per round: FedAvg's; K steps on a client, whatever the number of its examples.
"""

import tensorflow_federated as tff

from tff_algos.algorithms.arguments import (
    UNIFORM,
    ClientLearningRateDecay,
    Distributor,
    LearningProcess,
    MetricsAggregator,
    Optimizer,
    WeightedAggregator,
)
from tff_algos.algorithms.fed_avg import build_fed_avg
from tff_algos.hyperparameters import checked
from tff_algos.models import ModelOrFn


@checked
def build_reptile(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    server_optimizer_fn: Optimizer | None = None,
    *,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds Reptile(K), where K is the number of batches that each client gets.

    Clients that have examples are weighted uniformly.

    Args:
      model_fn: As in `build_fed_avg`, and so is every argument not listed here.
      client_optimizer_fn: The optimizer of local steps, one step per batch. Give every
        client K batches: `dataset.repeat().batch(B).take(K)`.
      server_optimizer_fn: Takes the mean model delta as gradient; Adam with learning
        rate 0.001 by default.

    Returns:
      As `build_fed_avg`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    return build_fed_avg(
        model_fn,
        client_optimizer_fn,
        server_optimizer_fn or tff.learning.optimizers.build_adam(0.001),
        client_weighting=UNIFORM,
        client_learning_rate_decay=client_learning_rate_decay,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
