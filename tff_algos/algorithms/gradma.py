"""GradMA: gradients and momentum that do not oppose what was learned before.

Luo, Wang, Fu, Li, Lan, Gao: "GradMA: A Gradient-Memory-based Accelerated Federated
Learning with Alleviated Catastrophic Forgetting", CVPR 2023, arXiv 2302.14307.

GradMA-W corrects every local step, GradMA-S the server's momentum, GradMA both. Both
corrections are the same quadratic program, with rows G_i and rho = `qp_margin`:

    correct(g; G) = argmin_v 1/2 ||v - g||^2  with  <G_i, v> >= rho * ||g|| * ||G_i||

A round, S of N clients in the cohort and p_k their weights, sum p_k = 1:

    client k (W):  rows: the batch's gradients at the client's previous weights y_prev and
                   at the server's model w, and the drift y - w (`local_rows`)
                   y <- y - eta * correct(grad f_b(y); rows);  delta_k = w - y
    server (S):    D_k <- D_k + delta_k for the cohort, in a memory of m rows
                   v <- correct(beta_1 * v + sum_k p_k delta_k; D);  w <- w - eta_g * v
                   D <- beta_2 * D

    client_works/gradma_training.py      the client's step
    finalizers/gradient_memory.py        the server's step and its memory
    solvers/cone.py                      the quadratic program

Reduces to: with one local step, and without `persist_previous`, GradMA-W is FedAvg and
GradMA is GradMA-S; with no memory (m = 0) GradMA-S is FedAvgM and, with beta_1 = 0 too,
GradMA is GradMA-W.

Cost per round: FedAvg's communication; with a `model_aggregator`, clients of GradMA and
GradMA-S send their update to it as well. A local step of GradMA-W takes two more gradients
of its batch. The server of GradMA-S keeps m updates and sees each client's update by
itself: it is incompatible with secure aggregation, and with privacy mechanisms that rely
on sums alone.
"""

from collections.abc import Sequence
from typing import Annotated, get_args

import tensorflow_federated as tff

from tff_algos import aggregators, client_works, finalizers
from tff_algos.algorithms.arguments import (
    BY_NUM_EXAMPLES,
    ClientLearningRateDecay,
    ClientWeighting,
    Distributor,
    LearningProcess,
    MetricsAggregator,
    NumClients,
    Optimizer,
    ServerLearningRate,
    ServerMomentum,
    WeightedAggregator,
)
from tff_algos.algorithms.composition import compose
from tff_algos.algorithms.mifa import MemoryDtypeChoice
from tff_algos.client_works.gradma_training import Row, StepCorrection
from tff_algos.finalizers.gradient_memory import GradientMemory
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import ModelOrFn, local_model
from tff_algos.solvers.cone import QpScope

_ALL_ROWS = get_args(Row)

LocalRows = Annotated[Sequence[Row], hparam()]
PersistPrevious = Annotated[bool, hparam()]
QpMargin = Annotated[float, hparam(above=-1, below=1, symbol="rho")]
QpScopeChoice = Annotated[QpScope, hparam()]
MemorySize = Annotated[int | None, hparam(low=0, symbol="m")]
MemoryDecay = Annotated[float, hparam(low=0, high=1, symbol="beta_2")]


@checked
def build_gradma_w(
    model_fn: tff.learning.models.FunctionalModel,
    client_optimizer_fn: Optimizer,
    server_optimizer_fn: Optimizer | None = None,
    *,
    local_rows: LocalRows = _ALL_ROWS,
    persist_previous: PersistPrevious = False,
    qp_margin: QpMargin = 0.0,
    qp_scope: QpScopeChoice = "global",
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds GradMA-W: FedAvg with corrected local steps.

    With deterministic gradients, the drift constraint removes the gradient's component
    along the drift, so clients stay near the end of their first step.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`.
      client_optimizer_fn: As in `build_fed_avg`, and so is every argument not listed
        here.
      local_rows: What local steps must not oppose: the batch's gradients at the previous
        local weights and at the server's, and the drift from the server's weights.
      persist_previous: Remember each client's final weights and use them as the previous
        weights in the first local step of its next round.
      qp_margin: Least inner product of a corrected vector with each vector that it must
        not oppose, divided by the norms of that vector and of the uncorrected one.
      qp_scope: Correct vectors as a whole (global) or tensor by tensor (per_tensor, as in
        the authors' code).

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `build_fed_avg`'s or, with
      `persist_previous`, as `build_scaffold`'s.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `model_fn` is not a functional model.
      ValueError: If the model draws at random and not as a function of weights and batch,
        as Keras' dropout does.
    """
    client_work = client_works.build_gradma_training_client_work(
        model_fn,
        client_optimizer_fn,
        StepCorrection(local_rows=local_rows, qp_margin=qp_margin, qp_scope=qp_scope),
        persist_previous=persist_previous,
        client_weighting=client_weighting,
        client_learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
    return compose(
        model_fn,
        client_work,
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )


@checked
def build_gradma_s(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    *,
    num_clients: NumClients,
    memory_size: MemorySize = None,
    memory_decay: MemoryDecay = 0.5,
    memory_dtype: MemoryDtypeChoice = None,
    server_learning_rate: ServerLearningRate = 1.0,
    server_momentum: ServerMomentum = 0.5,
    server_optimizer_fn: Optimizer | None = None,
    qp_margin: QpMargin = 0.0,
    qp_scope: QpScopeChoice = "global",
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds GradMA-S: FedAvg with a corrected momentum at the server.

    Args:
      model_fn: As in `build_fed_avg`, and so is every argument not listed here.
      client_optimizer_fn: The optimizer of local steps, one step per batch.
      num_clients: N, all clients in the population.
      memory_size: Largest number of clients whose updates the server remembers; None for
        all.
      memory_decay: Decay factor of remembered updates per round.
      memory_dtype: Type of the updates that the server remembers; None for the weights'.
      server_learning_rate: Server learning rate.
      server_momentum: Momentum of the server's step.
      server_optimizer_fn: Takes the corrected momentum as gradient, instead of SGD with
        `server_learning_rate`, which is then unused.
      qp_margin: As in `build_gradma_w`.
      qp_scope: As in `build_gradma_w`.

    Returns:
      As `build_gradma` without `persist_previous`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    client_work = client_works.build_local_training_client_work(
        model_fn,
        client_optimizer_fn,
        client_weighting=client_weighting,
        client_learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
        with_client_index=True,
    )
    memory = GradientMemory(
        num_clients=num_clients,
        memory_size=num_memory_rows(memory_size, num_clients),
        server_momentum=server_momentum,
        memory_decay=memory_decay,
        qp_margin=qp_margin,
        qp_scope=qp_scope,
        memory_dtype=memory_dtype,
    )
    optimizer = server_optimizer_fn or tff.learning.optimizers.build_sgdm(
        server_learning_rate
    )
    return _with_gradient_memory(
        model_fn, client_work, memory, optimizer, model_distributor, model_aggregator
    )


@checked
def build_gradma(
    model_fn: tff.learning.models.FunctionalModel,
    client_optimizer_fn: Optimizer,
    *,
    num_clients: NumClients,
    local_rows: LocalRows = _ALL_ROWS,
    persist_previous: PersistPrevious = False,
    memory_size: MemorySize = None,
    memory_decay: MemoryDecay = 0.5,
    memory_dtype: MemoryDtypeChoice = None,
    server_learning_rate: ServerLearningRate = 1.0,
    server_momentum: ServerMomentum = 0.5,
    server_optimizer_fn: Optimizer | None = None,
    qp_margin: QpMargin = 0.0,
    qp_scope: QpScopeChoice = "global",
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds GradMA: corrected local steps and a corrected momentum at the server.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`.
      client_optimizer_fn: As in `build_gradma_s`, and so is every argument not listed
        here.
      local_rows: As in `build_gradma_w`.
      persist_previous: As in `build_gradma_w`.
      qp_margin: As in `build_gradma_w`, of both programs.
      qp_scope: As in `build_gradma_w`, of both programs.

    Returns:
      A `tff.learning.templates.LearningProcess` whose `next` has the type
      `(<S@SERVER, {<examples=B*, client_index=int32*>}@CLIENTS> -> <state=S@SERVER,
      metrics=M@SERVER>)`: beside its batches a client's data hold its number in [0, N),
      as a sequence of one element (`tff_algos.index_dataset`), and with
      `persist_previous` its `memory` as in `build_scaffold`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `model_fn` is not a functional model.
      ValueError: If the model draws at random and not as a function of weights and batch,
        as Keras' dropout does.
    """
    client_work = client_works.build_gradma_training_client_work(
        model_fn,
        client_optimizer_fn,
        StepCorrection(local_rows=local_rows, qp_margin=qp_margin, qp_scope=qp_scope),
        persist_previous=persist_previous,
        client_weighting=client_weighting,
        client_learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
        with_client_index=True,
    )
    memory = GradientMemory(
        num_clients=num_clients,
        memory_size=num_memory_rows(memory_size, num_clients),
        server_momentum=server_momentum,
        memory_decay=memory_decay,
        qp_margin=qp_margin,
        qp_scope=qp_scope,
        memory_dtype=memory_dtype,
    )
    optimizer = server_optimizer_fn or tff.learning.optimizers.build_sgdm(
        server_learning_rate
    )
    return _with_gradient_memory(
        model_fn, client_work, memory, optimizer, model_distributor, model_aggregator
    )


def _with_gradient_memory(
    model_fn: ModelOrFn,
    client_work: tff.learning.templates.ClientWorkProcess,
    memory: GradientMemory,
    server_optimizer: Optimizer,
    model_distributor: Distributor | None,
    model_aggregator: WeightedAggregator | None,
) -> LearningProcess:
    """Composes client work of indexed updates with GradMA-S's server."""
    finalizer = finalizers.build_gradient_memory_finalizer(
        server_optimizer, local_model.weights_type(model_fn), memory
    )
    return compose(
        model_fn,
        client_work,
        finalizer=finalizer,
        model_distributor=model_distributor,
        model_aggregator=aggregators.MeanAndRowsFactory(model_aggregator),
    )


def num_memory_rows(memory_size: int | None, num_clients: int) -> int:
    """Returns how many clients' updates the server of GradMA-S remembers at most."""
    return num_clients if memory_size is None else min(memory_size, num_clients)
