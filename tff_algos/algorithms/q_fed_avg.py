"""q-FedAvg: clients with larger losses get larger weights.

Li, Sanjabi, Beirami, Smith: "Fair Resource Allocation in Federated Learning", 2020,
arXiv 1905.10497.

The server minimizes sum_k F_k^(q+1) / (q+1). A round, F_k client k's loss at w without
dropout, L an estimate of how fast gradients change (the inverse of the clients' learning
rate in the paper):

    client k:  delta_k as in FedAvg;  D_k = L * delta_k
    server:    w <- w - sum_k F_k^q D_k / sum_k (q F_k^(q-1) ||D_k||^2 + L F_k^q)

Reduces to: FedAvg with uniform weights for q = 0, whatever L. As q grows it approaches
minimizing the largest loss.

Cost per round: FedAvg's communication and a few scalars; a client makes one more pass
over its examples, for F_k. The server needs only sums over clients.
"""

from typing import Annotated

from tff_algos import aggregators, client_works
from tff_algos.aggregators.q_fair import LOSS_FLOOR
from tff_algos.algorithms.arguments import (
    ClientLearningRateDecay,
    Distributor,
    LearningProcess,
    MetricsAggregator,
    Optimizer,
)
from tff_algos.algorithms.composition import compose
from tff_algos.client_works.q_fed_avg_training import LossReduction
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import ModelOrFn


@checked
def build_q_fed_avg(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    server_optimizer_fn: Optimizer | None = None,
    *,
    q: Annotated[float, hparam(low=0, symbol="q")] = 0.5,
    lipschitz: Annotated[float, hparam(above=0, symbol="L")],
    loss_reduction: Annotated[LossReduction, hparam()] = "mean",
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
    with_full_pass: bool = False,
) -> LearningProcess:
    """Builds q-FedAvg.

    Args:
      model_fn: As in `build_fed_avg`, and so is every argument not listed here.
      client_optimizer_fn: The optimizer of local steps, one step per batch.
      server_optimizer_fn: Takes the fraction above as gradient; SGD with learning rate 1
        by default, which is q-FedAvg.
      q: Power of the loss that clients are weighted by; 0 is FedAvg with uniform weights.
      lipschitz: L, an estimate of the Lipschitz constant of the clients' gradients.
      loss_reduction: A client's loss: the mean over its examples (mean), or the sum of
        the batches' mean losses over one pass (total).
      with_full_pass: Whether clients' data include `full_pass`, batches in which each of
        a client's examples occurs once, over which F_k is taken. Without it F_k is taken
        over the round's batches, which is the same for one epoch.

    Returns:
      As `build_fed_avg`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    client_work = client_works.build_loss_weighted_training_client_work(
        model_fn,
        client_optimizer_fn,
        loss_floor=LOSS_FLOOR,
        loss_reduction=loss_reduction,
        client_learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
        with_full_pass=with_full_pass,
    )
    return compose(
        model_fn,
        client_work,
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=aggregators.QFairFactory(q, lipschitz),
    )
