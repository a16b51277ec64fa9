"""MIFA: the mean over all clients of each one's latest update, with and without momentum.

Gu, Huang, Zhang, Huang: "Fast Federated Learning in the Presence of Arbitrary Device
Unavailability", 2021, arXiv 2106.04159. Clients that are away count with what they sent
last. If all take part in every round it is FedAvg with uniform weights; MIFAM is MIFA
with momentum at the server, which with momentum 0 is MIFA.
"""

import functools

import attrs
import tensorflow_federated as tff

from tff_algos import aggregators, client_works
from tff_algos.aggregators.latest_updates import MeanOver, RowDtype
from tff_algos.algorithms import algorithm
from tff_algos.hyperparameters import choice, switch
from tff_algos.models.local_model import ModelOrFn

_PAPER = "Gu et al., 2021, arXiv 2106.04159"


def row_dtype_choice() -> str | None:
    """Declares the type of rows that a server remembers."""
    return choice(
        None,
        ("bfloat16", "float32", "float64"),
        "type of the updates that the server remembers (the weights')",
    )


@attrs.frozen(kw_only=True, slots=False)
class LatestUpdatesHParams:
    """What MIFA has and FedAvg has not."""

    mean_over: str = choice(
        "all",
        ("all", "seen"),
        "denominator of MIFA's mean: all clients or those seen so far",
    )
    wait_for_all: bool = switch(
        False, "the model stays as it is until every client has sent an update"
    )
    memory_dtype: str | None = row_dtype_choice()


@attrs.frozen(kw_only=True)
class MifaHParams(
    LatestUpdatesHParams,
    algorithm.UnweightedTrainingHParams,
    algorithm.ServerOptimizerHParams,
):
    """MIFA: eta, E, B, S at the clients, eta_g at the server."""


@attrs.frozen(kw_only=True)
class MifaMHParams(
    LatestUpdatesHParams,
    algorithm.UnweightedTrainingHParams,
    algorithm.ServerMomentumHParams,
):
    """MIFAM: MIFA's, and beta_1."""


def build_mifa(
    model_fn: ModelOrFn,
    client_optimizer: tff.learning.optimizers.Optimizer,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    *,
    num_clients: int,
    mean_over: MeanOver = "all",
    wait_for_all: bool = False,
    memory_dtype: RowDtype | None = None,
    client_learning_rate_decay: float = 1.0,
    model_distributor: tff.learning.templates.DistributionProcess | None = None,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
) -> tff.learning.templates.LearningProcess:
    """Builds MIFA.

    G_k <- delta_k for the clients of the round, w <- w - eta_g * mean of all N rows G_i,
    which are zero before a client's first round. Where the clients' rate decays, what is
    remembered decays with it.

    The server sees every client's update by itself: see
    `aggregators.LatestUpdatesFactory`.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      client_optimizer: The optimizer of local steps, one per batch.
      server_optimizer: Takes the mean for a gradient; SGD with learning rate 1 by
        default.
      num_clients: N, all clients that there are, >= 1.
      mean_over: Whether the mean's denominator is "all" N clients or those "seen".
      wait_for_all: Whether the model stays as it is until every client has sent an
        update (the paper's other start).
      memory_dtype: Of the rows; None for the weights' own.
      client_learning_rate_decay: Factor on the client learning rate, and on what is
        remembered, after every round, in (0, 1].
      model_distributor: Instead of a plain broadcast.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_fed_avg`.

    Returns:
      A `tff.learning.templates.LearningProcess` whose `next` has the type
      `(<S@SERVER, {<examples=B*, client_index=int32*>}@CLIENTS> -> <state=S@SERVER,
      metrics=M@SERVER>)`: beside its batches a client tells its own number in
      [0, N), as a sequence of one element (`tff_algos.index_dataset`).

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    LatestUpdatesHParams(mean_over=mean_over, memory_dtype=memory_dtype)
    algorithm.check_num_clients(num_clients)
    client_work = client_works.build_local_training_client_work(
        model_fn,
        client_optimizer,
        client_weighting=tff.learning.ClientWeighting.UNIFORM,
        learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
        with_client_index=True,
    )
    return algorithm.compose(
        model_fn,
        client_work,
        server_optimizer or tff.learning.optimizers.build_sgdm(1.0),
        model_distributor=model_distributor,
        model_aggregator=aggregators.LatestUpdatesFactory(
            num_clients,
            mean_over=mean_over,
            wait_for_all=wait_for_all,
            decay=client_learning_rate_decay,
            row_dtype=memory_dtype,
        ),
    )


def build_mifa_m(
    model_fn: ModelOrFn,
    client_optimizer: tff.learning.optimizers.Optimizer,
    *,
    server_learning_rate: float = 1.0,
    server_momentum: float = 0.9,
    **kwargs,
) -> tff.learning.templates.LearningProcess:
    """Builds MIFA with heavy-ball momentum at the server.

    Args:
      model_fn: As in `build_mifa`.
      client_optimizer: As in `build_mifa`.
      server_learning_rate: eta_g, >= 0.
      server_momentum: beta_1, in [0, 1).
      **kwargs: The other arguments of `build_mifa`.

    Returns:
      As `build_mifa`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    return build_mifa(
        model_fn,
        client_optimizer,
        algorithm.build_momentum_optimizer(server_learning_rate, server_momentum),
        **kwargs,
    )


def _build_stages(name, server_optimizer, task, hparams):
    algorithm.check_server_memory(
        task.model,
        len(task.train_client_ids),
        hparams.memory_dtype,
        "memory_dtype",
        hparams.memory_dtype,
    )
    process = build_mifa(
        task.model,
        algorithm.build_client_optimizer(hparams),
        server_optimizer(hparams),
        num_clients=len(task.train_client_ids),
        mean_over=hparams.mean_over,
        wait_for_all=hparams.wait_for_all,
        memory_dtype=hparams.memory_dtype,
        client_learning_rate_decay=hparams.client_learning_rate_decay,
        with_num_examples=algorithm.tells_num_examples(hparams, task.model),
    )
    return algorithm.single_stage(name, process, hparams)


MIFA = algorithm.Algorithm(
    name="mifa",
    title="MIFA",
    summary="mean over all clients of each one's latest update",
    paper=_PAPER,
    hparams=MifaHParams,
    build_stages=functools.partial(
        _build_stages, "mifa", algorithm.server_optimizer_from
    ),
)

MIFA_M = algorithm.Algorithm(
    name="mifam",
    title="MIFAM",
    summary="MIFA with momentum at the server",
    paper=_PAPER,
    hparams=MifaMHParams,
    build_stages=functools.partial(
        _build_stages, "mifam", algorithm.momentum_optimizer_from
    ),
)
