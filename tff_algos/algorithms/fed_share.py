"""FedShare: FedAvg on clients' own data and a small set that all share.

Zhao, Li, Lai, Suda, Civin, Chandra: "Federated Learning with Non-IID Data", 2018,
arXiv 1806.00582; a baseline of Yao et al., 2019, arXiv 1910.08234.

Clients train on the union of their examples and the shared ones; both count in a
client's weight, unless it is told its own number (`with_num_examples`). With an empty shared set FedShare is FedAvg.
"""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import attrs
import numpy as np
import tensorflow_federated as tff

from tff_algos.algorithms import algorithm, fed_avg
from tff_algos.clients.batching import Examples, derive_seed
from tff_algos.experiments import server_examples
from tff_algos.hyperparameters import SHARE, HyperparameterError, choice, hparam, switch
from tff_algos.models.local_model import ModelOrFn

ShareMode = Literal["full", "split"]


@attrs.frozen(kw_only=True)
class FedShareHParams(algorithm.LocalTrainingHParams, algorithm.ServerOptimizerHParams):
    """FedShare: FedAvg's, and the shared set."""

    shared_fraction: float = hparam(
        0.01, float, SHARE, "size of the shared set as a share of the training examples"
    )
    share_mode: str = choice(
        "full", ("full", "split"), "whether every client gets all of it or a part"
    )
    count_shared: bool = switch(
        True, "shared examples count in the number that a client weighs by"
    )

    def __attrs_post_init__(self):
        super().__attrs_post_init__()
        if not self.count_shared and self.client_weighting != "num_examples":
            raise HyperparameterError(
                "count_shared",
                self.count_shared,
                "True unless --client_weighting=num_examples",
            )


def with_shared_examples(
    examples: Callable[[str], Examples],
    client_ids: Sequence[str],
    shared: Examples,
    mode: ShareMode = "full",
    seed: int = 0,
) -> Callable[[str], Examples]:
    """Returns what clients train on: their own examples, then shared ones.

    Args:
      examples: From a client's id to its own `(x, y)`.
      client_ids: All clients that train.
      shared: The shared set `(x, y)`, of n examples, n may be 0.
      mode: "full": every client gets all of it. "split": it is dealt out to the
        clients, each example to one, so that a client gets n / N on average.
      seed: Decides who gets what under "split".

    Returns:
      A function from a client's id, which must be one of `client_ids`.

    Raises:
      ValueError: If `mode` is neither of the two.
    """
    if mode not in get_args(ShareMode):
        raise ValueError(f"Expected mode out of {get_args(ShareMode)}, found {mode!r}.")
    taken = dict.fromkeys(client_ids, np.arange(len(shared[0])))
    if mode == "split":
        rng = np.random.default_rng(derive_seed(seed, "split"))
        parts = np.array_split(rng.permutation(len(shared[0])), len(client_ids))
        # The larger parts come first; they shall not be the same clients' always.
        order = rng.permutation(len(client_ids))
        taken = {client_ids[k]: part for k, part in zip(order, parts, strict=True)}

    def united(client_id: str) -> Examples:
        own, indices = examples(client_id), taken[client_id]
        return tuple(
            np.concatenate([mine, everyones[indices]])
            for mine, everyones in zip(own, shared, strict=True)
        )

    return united


def build_fed_share(
    model_fn: ModelOrFn,
    client_optimizer: tff.learning.optimizers.Optimizer,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    **kwargs,
) -> tff.learning.templates.LearningProcess:
    """Builds FedShare, which is FedAvg on data sets that hold the shared examples.

    What a client is given decides what it trains on, not the process: make its data
    set of `with_shared_examples`.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      client_optimizer: As in `build_fed_avg`.
      server_optimizer: As in `build_fed_avg`.
      **kwargs: The other arguments of `build_fed_avg`.

    Returns:
      As `build_fed_avg`.
    """
    return fed_avg.build_fed_avg(model_fn, client_optimizer, server_optimizer, **kwargs)


def _build_stages(task, hparams):
    process = fed_avg.build_from(
        task.model,
        hparams,
        algorithm.server_optimizer_from,
        with_num_examples=True if not hparams.count_shared else None,
    )
    shared = server_examples.draw(task, hparams.shared_fraction, "shared")
    train_examples = with_shared_examples(
        lambda client_id: task.examples(client_id, "train"),
        task.train_client_ids,
        shared,
        hparams.share_mode,
        task.seed,
    )
    (stage,) = algorithm.single_stage(
        "fedshare", process, hparams, train_examples=train_examples
    )
    if hparams.count_shared:
        return (stage,)

    def num_own(client_id: str) -> int:
        return stage.batches.num_examples(len(task.examples(client_id, "train")[0]))

    return (attrs.evolve(stage, num_examples=num_own),)


FED_SHARE = algorithm.Algorithm(
    name="fedshare",
    title="FedShare",
    summary="FedAvg on clients' own examples and a small set that all share",
    paper="Zhao et al., 2018, arXiv 1806.00582",
    hparams=FedShareHParams,
    build_stages=_build_stages,
    # The paper deals the set out where clients are people, as small as it is.
    settings={
        "emnist": {"share_mode": "split"},
        "shakespeare": {"share_mode": "split"},
    },
)
