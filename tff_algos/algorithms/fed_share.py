"""FedShare: FedAvg on clients' own data and a small set that all clients share.

Zhao, Li, Lai, Suda, Civin, Chandra: "Federated Learning with Non-IID Data", 2018,
arXiv 1806.00582; a baseline of Yao et al., 2019, arXiv 1910.08234.

A round is FedAvg's on the union of a client's examples and its shared ones. Both count
in a client's weight, unless its data say otherwise (`with_num_examples`).

Reduces to: FedAvg with an empty shared set.

Cost per round: FedAvg's; once, every client receives its shared examples.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import numpy as np

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
from tff_algos.algorithms.fed_avg import build_fed_avg
from tff_algos.clients.batching import Examples, derive_seed
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import ModelOrFn

ShareMode = Literal["full", "split"]


@checked
def with_shared_examples(
    examples: Callable[[str], Examples],
    client_ids: Sequence[str],
    shared: Examples,
    mode: Annotated[ShareMode, hparam()] = "full",
    seed: int = 0,
) -> Callable[[str], Examples]:
    """Returns what clients train on: their own examples, then shared ones.

    Args:
      examples: From a client's id to its own `(x, y)`.
      client_ids: All clients that train.
      shared: The shared set `(x, y)` of n examples, possibly none.
      mode: "full": every client gets all of it. "split": each example is dealt to one
        client, so that a client gets n / N on average.
      seed: Decides who gets what with "split".

    Returns:
      A function from a client's id, which must be one of `client_ids`.

    Raises:
      HyperparameterError: If `mode` is neither of the two.
    """
    taken = dict.fromkeys(client_ids, np.arange(len(shared[0])))
    if mode == "split":
        rng = np.random.default_rng(derive_seed(seed, "split"))
        parts = np.array_split(rng.permutation(len(shared[0])), len(client_ids))
        # The larger parts come first; they must not always go to the same clients.
        order = rng.permutation(len(client_ids))
        taken = {client_ids[k]: part for k, part in zip(order, parts, strict=True)}

    def united(client_id: str) -> Examples:
        own, indices = examples(client_id), taken[client_id]
        return tuple(
            np.concatenate([mine, everyones[indices]])
            for mine, everyones in zip(own, shared, strict=True)
        )

    return united


@checked
def build_fed_share(
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
    """Builds FedShare, which is FedAvg on datasets that hold the shared examples.

    What clients train on is decided by the data they are given, not by the process:
    make their datasets from `with_shared_examples`.

    Args:
      model_fn: As in `build_fed_avg`, and so is every other argument.

    Returns:
      As `build_fed_avg`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    return build_fed_avg(
        model_fn,
        client_optimizer_fn,
        server_optimizer_fn,
        client_weighting=client_weighting,
        client_learning_rate_decay=client_learning_rate_decay,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
