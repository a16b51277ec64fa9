"""MimeLite: local steps with the server's optimizer statistics.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh: "Breaking the centralized barrier
for cross-device federated learning", 2021, arXiv 2008.03606.

A round, m the server's momentum, frozen at the clients, and beta its factor (undamped,
as TFF's):

    client k:  for each batch b: y <- y - eta * (grad f_b(y) + beta * m)
               delta_k = w - y;  c_k = grad F_k(w), over all of its examples
    server:    w <- w - eta_g * sum_k p_k delta_k;  m <- beta * m + sum_k p_k c_k

Reduces to: FedAvg with beta = 0, and in the first round. With one full-batch step and
every client it is heavy-ball gradient descent.

Cost per round: a client receives model and momentum, sends a delta and a gradient, and
makes one more pass over its examples.
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
    WeightedAggregator,
)
from tff_algos.algorithms.composition import compose
from tff_algos.hyperparameters import checked
from tff_algos.models import ModelOrFn


@checked
def build_mime_lite(
    model_fn: ModelOrFn,
    base_optimizer: Optimizer,
    server_optimizer: Optimizer | None = None,
    *,
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    full_gradient_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
    with_full_pass: bool = False,
) -> LearningProcess:
    """Builds MimeLite.

    The arguments are named as those of `tff.learning.algorithms.build_weighted_mime_lite`.

    Args:
      model_fn: As in `build_fed_avg`, and so is every argument not listed here.
      base_optimizer: The optimizer of local steps, whose state the server keeps;
        `build_sgdm(eta, momentum=beta)` for momentum.
      server_optimizer: Takes the mean model delta as gradient; SGD with learning rate 1
        by default.
      full_gradient_aggregator: Replaces the weighted mean of full gradients.
      with_num_examples: As in `build_fed_avg`, for the full gradients too.
      with_full_pass: Whether clients' data include `full_pass`, batches in which each of
        a client's examples occurs once, over which the full gradient is taken.

    Returns:
      As `build_fed_avg`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    client_work = client_works.build_mime_lite_client_work(
        model_fn,
        base_optimizer,
        client_weighting=client_weighting,
        client_learning_rate_decay=client_learning_rate_decay,
        full_gradient_aggregator=full_gradient_aggregator,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
        with_full_pass=with_full_pass,
    )
    return compose(
        model_fn,
        client_work,
        server_optimizer,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )
