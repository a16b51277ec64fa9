"""FedPer: clients keep the last blocks of the model to themselves.

Arivazhagan, Aggarwal, Singh, Choudhary: "Federated Learning with Personalization
Layers", 2019, arXiv 1912.00818.

A round is FedAvg's on the first blocks, the base. A client trains them together with its
own last blocks, the head, which start as the server's:

    client k:  (y, h_k) <- (w, h_k);  for each batch b: a step on f_b(y, h_k)
               delta_k = w - y
    server:    w <- w - eta_g * sum_k p_k delta_k

Clients predict with (w, h_k).

Reduces to: without personal blocks, FedAvg; with nothing but personal blocks, training on
each client alone.

Cost per round: a client sends the base and remembers the head. It receives the whole
model, because its first round starts from the server's head.
"""

from typing import Annotated

from tff_algos import client_works
from tff_algos.algorithms.arguments import (
    BY_NUM_EXAMPLES,
    ClientLearningRateDecay,
    ClientWeighting,
    Distributor,
    MetricsAggregator,
    Optimizer,
    WeightedAggregator,
)
from tff_algos.algorithms.personal_process import (
    PersonalProcess,
    compose_partly_personal,
    last_blocks,
)
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import BlockModel


@checked
def build_fed_per(
    model_fn: BlockModel,
    client_optimizer_fn: Optimizer,
    server_optimizer_fn: Optimizer | None = None,
    *,
    personal_blocks: Annotated[int, hparam(low=0)] = 1,
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> PersonalProcess:
    """Builds FedPer.

    Args:
      model_fn: A `tff_algos.models.BlockModel`.
      client_optimizer_fn: As in `build_fed_avg`, and so is every argument not listed
        here.
      personal_blocks: How many of the last blocks clients keep to themselves.

    Returns:
      A `PersonalProcess` typed as `build_scaffold`'s; a row is `seen` (bool) and the
      client's own `weights` and `statistics`, where it has any.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `model_fn` is not a block model.
    """
    personal = last_blocks(model_fn, personal_blocks)
    client_work = client_works.build_partly_personal_client_work(
        model_fn,
        client_optimizer_fn,
        personal=personal,
        client_weighting=client_weighting,
        client_learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
    return compose_partly_personal(
        model_fn,
        client_work,
        personal,
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )
