"""FedRep: a shared representation, and heads that clients train before it.

Collins, Hassani, Mokhtari, Shakkottai: "Exploiting Shared Representations for
Personalized Federated Learning", 2021, arXiv 2102.07078.

A client trains its own last blocks, the head h_k, while the others are frozen, and then
the others, the body, while its head is frozen:

    client k:  head_passes times over the batches:  a step of h_k on f_b(w, h_k)
               y <- w;  body_passes times over the batches:  a step of y on f_b(y, h_k)
               delta_k = w - y
    server:    w <- w - eta_g * sum_k p_k delta_k

Clients predict with (w, h_k).

Reduces to: without passes for the body, heads on a body that never moves; without passes
for the head and with a head that nobody trains, FedAvg on the body.

Cost per round: a client sends the body, remembers the head, and takes head_passes +
body_passes times FedAvg's steps. It receives the whole model, because its first round
starts from the server's head.
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
from tff_algos.client_works.partly_personal_training import Phase, others
from tff_algos.hyperparameters import HyperparameterError, checked, hparam
from tff_algos.models import BlockModel


@checked
def build_fed_rep(
    model_fn: BlockModel,
    client_optimizer_fn: Optimizer,
    server_optimizer_fn: Optimizer | None = None,
    *,
    personal_blocks: Annotated[int, hparam(low=1)] = 1,
    head_passes: Annotated[int, hparam(low=0)] = 1,
    body_passes: Annotated[int, hparam(low=0)] = 1,
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> PersonalProcess:
    """Builds FedRep.

    Args:
      model_fn: A `tff_algos.models.BlockModel`.
      client_optimizer_fn: As in `build_fed_avg`, and so is every argument not listed
        here.
      personal_blocks: How many of the last blocks are each client's own head.
      head_passes: Passes over the round's batches that train the head.
      body_passes: Passes over the round's batches that train the body, after the head.

    Returns:
      A `PersonalProcess` typed as `build_scaffold`'s; a row is `seen` (bool) and the
      client's own `weights` and `statistics`, where it has any.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `model_fn` is not a block model.
    """
    if not head_passes and not body_passes:
        raise HyperparameterError(
            "body_passes", body_passes, "at least 1 with head_passes=0"
        )
    personal = last_blocks(model_fn, personal_blocks)
    client_work = client_works.build_partly_personal_client_work(
        model_fn,
        client_optimizer_fn,
        personal=personal,
        phases=[
            Phase(personal.trainable, head_passes),
            Phase(others(personal.trainable), body_passes),
        ],
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
