"""LG-FedAvg: clients keep the first blocks of the model to themselves.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: "Think Locally, Act
Globally: Federated Learning with Local and Global Representations", 2020, arXiv
2001.01523.

A round is FedAvg's on the last blocks. A client trains them together with its own first
blocks, the local representation r_k, which start as the server's:

    client k:  (r_k, y) <- (r_k, w);  for each batch b: a step on f_b(r_k, y)
               delta_k = w - y
    server:    w <- w - eta_g * sum_k p_k delta_k

Clients predict with (r_k, w).

Reduces to: without personal blocks, FedAvg.

Cost per round: a client sends the last blocks and remembers the first. It receives the
whole model, because its first round starts from the server's first blocks.
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
    first_blocks,
)
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import BlockModel


@checked
def build_lg_fed_avg(
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
    """Builds LG-FedAvg.

    Args:
      model_fn: A `tff_algos.models.BlockModel`.
      client_optimizer_fn: As in `build_fed_avg`, and so is every argument not listed
        here.
      personal_blocks: How many of the first blocks clients keep to themselves.

    Returns:
      A `PersonalProcess` typed as `build_scaffold`'s; a row is `seen` (bool) and the
      client's own `weights` and `statistics`, where it has any.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `model_fn` is not a block model.
    """
    personal = first_blocks(model_fn, personal_blocks)
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
