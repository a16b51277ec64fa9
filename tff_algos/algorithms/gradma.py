"""GradMA: gradients and momentum that do not oppose what was learned before.

Luo, Wang, Fu, Li, Lan, Gao: "GradMA: A Gradient-Memory-based Accelerated Federated
Learning with Alleviated Catastrophic Forgetting", CVPR 2023, arXiv 2302.14307.

GradMA-W corrects every local step (`client_works.gradma_training`), GradMA-S the
server's momentum by a memory of clients' updates (`finalizers.gradient_memory`), GradMA
does both. With one local step GradMA-W is FedAvg and GradMA is GradMA-S; with no memory
(m = 0) GradMA-S is FedAvgM and, with beta_1 = 0 too, GradMA is GradMA-W.
"""

from collections.abc import Callable, Sequence
from typing import Any, get_args

import attrs
import tensorflow_federated as tff

from tff_algos import aggregators, client_works, finalizers
from tff_algos.aggregators.latest_updates import RowDtype
from tff_algos.algorithms import algorithm
from tff_algos.algorithms.mifa import row_dtype_choice
from tff_algos.client_works.gradma_training import QpScope, Row, StepCorrection
from tff_algos.finalizers.gradient_memory import GradientMemory
from tff_algos.hyperparameters import (
    NON_NEGATIVE,
    HyperparameterError,
    Interval,
    choice,
    hparam,
    switch,
)
from tff_algos.models import local_model
from tff_algos.models.local_model import ModelOrFn

_PAPER = "Luo et al., 2023, arXiv 2302.14307"
_COSINE = Interval(low=-1, high=1, low_open=True, high_open=True)
_NO_ROWS = "none"
_VALID_ROWS = f"a list of {', '.join(get_args(Row))}, each once, or {_NO_ROWS}"


def _parse_rows(text: str) -> tuple[Row, ...]:
    """Returns the rows that a comma-separated list names; "none" for none.

    Raises:
      HyperparameterError: If it names any other, or one twice.
    """
    names = () if text == _NO_ROWS else tuple(text.split(","))
    if set(names) - set(get_args(Row)) or len(set(names)) != len(names):
        raise HyperparameterError("local_rows", text, _VALID_ROWS)
    return names


@attrs.frozen(kw_only=True, slots=False)
class QpHParams:
    """What both quadratic programs have."""

    qp_margin: float = hparam(
        0.0,
        float,
        _COSINE,
        "least cosine of a corrected vector with what it must not oppose",
        "rho",
    )
    qp_scope: str = choice(
        "global",
        get_args(QpScope),
        "whether vectors are corrected as a whole or tensor by tensor",
    )


def _local_rows() -> Any:
    def check(instance, attribute, value):
        del instance, attribute
        _parse_rows(value)

    return attrs.field(
        default=",".join(get_args(Row)),
        validator=check,
        metadata={
            "help": "what local steps must not oppose: gradients at the previous local "
            "weights and at the server's, the drift from the server's",
            "kind": str,
            "valid": _VALID_ROWS,
        },
    )


@attrs.frozen(kw_only=True, slots=False)
class StepCorrectionHParams(QpHParams):
    """What corrects local steps."""

    local_rows: str = _local_rows()
    persist_previous: bool = switch(
        False,
        "clients remember their last weights, which come before their first step",
    )

    def correction(self) -> StepCorrection:
        """Returns the correction of local steps."""
        return StepCorrection(
            rows=_parse_rows(self.local_rows),
            margin=self.qp_margin,
            qp_scope=self.qp_scope,
        )


@attrs.frozen(kw_only=True, slots=False)
class GradientMemoryHParams(QpHParams, algorithm.ServerMomentumHParams):
    """What corrects the server's momentum: beta_1, beta_2, m."""

    server_momentum: float = attrs.field(
        default=0.5,
        **{
            name: getattr(
                attrs.fields(algorithm.ServerMomentumHParams).server_momentum, name
            )
            for name in ("validator", "converter", "metadata")
        },
    )
    memory_decay: float = hparam(
        0.5,
        float,
        Interval(low=0, high=1),
        "factor on remembered updates after every round",
        "beta_2",
    )
    memory_size: int = hparam(
        100,
        int,
        NON_NEGATIVE,
        "most clients whose updates the server remembers",
        "m",
    )
    memory_dtype: str | None = row_dtype_choice()

    def memory(self, num_clients: int) -> GradientMemory:
        """Returns the memory for so many clients."""
        return GradientMemory(
            num_clients=num_clients,
            num_rows=min(self.memory_size, num_clients),
            momentum=self.server_momentum,
            memory_decay=self.memory_decay,
            margin=self.qp_margin,
            qp_scope=self.qp_scope,
            row_dtype=self.memory_dtype,
        )


@attrs.frozen(kw_only=True)
class GradMASHParams(GradientMemoryHParams, algorithm.LocalTrainingHParams):
    """GradMA-S: FedAvg's at the clients; eta_g, beta_1, beta_2, m at the server."""


@attrs.frozen(kw_only=True)
class GradMAWHParams(
    StepCorrectionHParams,
    algorithm.LocalTrainingHParams,
    algorithm.ServerOptimizerHParams,
):
    """GradMA-W: FedAvg's, and what corrects local steps."""


@attrs.frozen(kw_only=True)
class GradMAHParams(
    StepCorrectionHParams, GradientMemoryHParams, algorithm.LocalTrainingHParams
):
    """GradMA: those of GradMA-S and GradMA-W."""


def build_gradma_w(
    model_fn: tff.learning.models.FunctionalModel,
    client_optimizer: tff.learning.optimizers.Optimizer,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    *,
    local_rows: Sequence[Row] = get_args(Row),
    qp_margin: float = 0.0,
    qp_scope: QpScope = "global",
    persist_previous: bool = False,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    client_learning_rate_decay: float = 1.0,
    model_distributor: tff.learning.templates.DistributionProcess | None = None,
    model_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
) -> tff.learning.templates.LearningProcess:
    """Builds GradMA-W: FedAvg with corrected local steps.

    Each step takes two more gradients of its batch. On deterministic gradients the
    drift keeps a client near the end of its first step: it takes all of a gradient
    away that lies along the drift.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`.
      client_optimizer: The optimizer of local steps, one per batch.
      server_optimizer: Takes the mean model delta for a gradient; SGD with learning
        rate 1 by default.
      local_rows: What steps must not oppose, of "previous", "server" and "drift"; see
        `client_works.gradma_training.StepCorrection`.
      qp_margin: rho, the least cosine of a corrected gradient with a row, relative to
        the gradient's norm, in (-1, 1).
      qp_scope: "global" corrects a gradient as one vector, "per_tensor" (as the
        authors' code does) each tensor by itself.
      persist_previous: Whether clients remember the weights that they ended their last
        round with, as those before the first step.
      client_weighting: Whether clients weigh by the examples they processed or
        all alike.
      client_learning_rate_decay: Factor on the client learning rate after every
        round, in (0, 1].
      model_distributor: Instead of a plain broadcast.
      model_aggregator: Instead of the weighted mean.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_fed_avg`.

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `build_fed_avg`'s or, with
      `persist_previous`, as `build_scaffold`'s.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `model_fn` is not a functional model.
    """
    correction = _step_correction(local_rows, qp_margin, qp_scope, persist_previous)
    client_work = client_works.build_gradma_training_client_work(
        model_fn,
        client_optimizer,
        correction,
        persist_previous=persist_previous,
        client_weighting=client_weighting,
        learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
    process = algorithm.compose(
        model_fn,
        client_work,
        server_optimizer or tff.learning.optimizers.build_sgdm(1.0),
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )
    return client_works.undo_rejected_rounds(process) if persist_previous else process


def _step_correction(
    local_rows: Sequence[Row],
    qp_margin: float,
    qp_scope: QpScope,
    persist_previous: bool,
) -> StepCorrection:
    """Returns the correction that arguments describe, once they are checked."""
    return StepCorrectionHParams(
        local_rows=",".join(local_rows) or _NO_ROWS,
        qp_margin=qp_margin,
        qp_scope=qp_scope,
        persist_previous=persist_previous,
    ).correction()


def build_gradma_s(
    model_fn: ModelOrFn,
    client_optimizer: tff.learning.optimizers.Optimizer,
    *,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    client_learning_rate_decay: float = 1.0,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
    **kwargs,
) -> tff.learning.templates.LearningProcess:
    """Builds GradMA-S: FedAvg with a corrected momentum at the server.

    See `finalizers.build_gradient_memory_finalizer` for what the server does. It sees
    every client's update by itself: incompatible with secure aggregation, and with
    privacy mechanisms that rest on sums alone.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      client_optimizer: The optimizer of local steps, one per batch.
      client_weighting: Whether clients weigh by the examples they processed or
        all alike.
      client_learning_rate_decay: Factor on the client learning rate after every
        round, in (0, 1].
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_fed_avg`.
      **kwargs: Those of the server, as in `build_gradma`.

    Returns:
      As `build_gradma` without `persist_previous`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    client_work = client_works.build_local_training_client_work(
        model_fn,
        client_optimizer,
        client_weighting=client_weighting,
        learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
        with_client_index=True,
    )
    return _with_gradient_memory(model_fn, client_work, **kwargs)


def build_gradma(
    model_fn: tff.learning.models.FunctionalModel,
    client_optimizer: tff.learning.optimizers.Optimizer,
    *,
    local_rows: Sequence[Row] = get_args(Row),
    qp_margin: float = 0.0,
    qp_scope: QpScope = "global",
    persist_previous: bool = False,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    client_learning_rate_decay: float = 1.0,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
    **kwargs,
) -> tff.learning.templates.LearningProcess:
    """Builds GradMA: corrected local steps and a corrected momentum at the server.

    Args:
      model_fn: As in `build_gradma_w`.
      client_optimizer: As in `build_gradma_w`.
      local_rows: As in `build_gradma_w`.
      qp_margin: rho, of both programs, in (-1, 1).
      qp_scope: Of both programs, "global" or "per_tensor".
      persist_previous: As in `build_gradma_w`.
      client_weighting: As in `build_gradma_w`.
      client_learning_rate_decay: As in `build_gradma_w`.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_fed_avg`.
      **kwargs: Those of the server: `num_clients` (N, all clients there are),
        `memory_size` (m, the most clients whose updates are remembered; 100),
        `server_learning_rate` (eta_g, 1), `server_momentum` (beta_1, 0.5),
        `memory_decay` (beta_2, 0.5), `memory_dtype` ("bfloat16", "float32", "float64";
        None for the weights' own), `model_distributor` and `model_aggregator` (of the
        mean).

    Returns:
      A `tff.learning.templates.LearningProcess` whose `next` has the type
      `(<S@SERVER, {<examples=B*, client_index=int32*>}@CLIENTS> -> <state=S@SERVER,
      metrics=M@SERVER>)`: beside its batches a client tells its own number in
      [0, N), as a sequence of one element (`tff_algos.index_dataset`), and with
      `persist_previous` its `memory` as in `build_scaffold`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `model_fn` is not a functional model.
    """
    client_work = client_works.build_gradma_training_client_work(
        model_fn,
        client_optimizer,
        _step_correction(local_rows, qp_margin, qp_scope, persist_previous),
        persist_previous=persist_previous,
        client_weighting=client_weighting,
        learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
        with_client_index=True,
    )
    process = _with_gradient_memory(
        model_fn, client_work, qp_margin=qp_margin, qp_scope=qp_scope, **kwargs
    )
    return client_works.undo_rejected_rounds(process) if persist_previous else process


def _with_gradient_memory(
    model_fn: ModelOrFn,
    client_work: tff.learning.templates.ClientWorkProcess,
    *,
    num_clients: int,
    memory_size: int = 100,
    server_learning_rate: float = 1.0,
    server_momentum: float = 0.5,
    memory_decay: float = 0.5,
    qp_margin: float = 0.0,
    qp_scope: QpScope = "global",
    memory_dtype: RowDtype | None = None,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    model_distributor: tff.learning.templates.DistributionProcess | None = None,
    model_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
) -> tff.learning.templates.LearningProcess:
    """Composes client work of indexed updates with GradMA-S's server."""
    algorithm.check_num_clients(num_clients)
    hparams = GradientMemoryHParams(
        memory_size=memory_size,
        server_learning_rate=server_learning_rate,
        server_momentum=server_momentum,
        memory_decay=memory_decay,
        qp_margin=qp_margin,
        qp_scope=qp_scope,
        memory_dtype=memory_dtype,
    )
    finalizer = finalizers.build_gradient_memory_finalizer(
        server_optimizer or tff.learning.optimizers.build_sgdm(server_learning_rate),
        local_model.weights_type(model_fn),
        hparams.memory(num_clients),
    )
    return algorithm.compose(
        model_fn,
        client_work,
        finalizer=finalizer,
        model_distributor=model_distributor,
        model_aggregator=aggregators.MeanAndRowsFactory(model_aggregator),
    )


def _clients_part(task, hparams: algorithm.LocalTrainingHParams) -> dict[str, Any]:
    return {
        "with_num_examples": algorithm.tells_num_examples(hparams, task.model),
        "client_weighting": algorithm.client_weighting(hparams),
        "client_learning_rate_decay": hparams.client_learning_rate_decay,
    }


def _correction_part(hparams: StepCorrectionHParams) -> dict[str, Any]:
    return {
        "local_rows": hparams.correction().rows,
        "qp_margin": hparams.qp_margin,
        "qp_scope": hparams.qp_scope,
        "persist_previous": hparams.persist_previous,
    }


def _server_part(task, hparams: GradientMemoryHParams) -> dict[str, Any]:
    return {
        "num_clients": len(task.train_client_ids),
        "memory_size": hparams.memory_size,
        "server_momentum": hparams.server_momentum,
        "memory_decay": hparams.memory_decay,
        "qp_margin": hparams.qp_margin,
        "qp_scope": hparams.qp_scope,
        "memory_dtype": hparams.memory_dtype,
        "server_optimizer": algorithm.build_optimizer(
            "sgd",
            hparams.server_learning_rate,
            hparams.server_learning_rate_decay,
            decay_period=hparams.server_learning_rate_decay_period,
        ),
    }


def _check_memory(task, hparams: GradientMemoryHParams) -> None:
    """Raises `HyperparameterError` for a memory that the machine does not have."""
    num_rows = min(hparams.memory_size, len(task.train_client_ids))
    algorithm.check_server_memory(
        task.model, num_rows, hparams.memory_dtype, "memory_size", hparams.memory_size
    )


def _build_stages_s(task, hparams):
    _check_memory(task, hparams)
    process = build_gradma_s(
        task.model,
        algorithm.build_client_optimizer(hparams),
        **_clients_part(task, hparams),
        **_server_part(task, hparams),
    )
    return algorithm.single_stage("gradma_s", process, hparams)


def _build_stages_w(task, hparams):
    process = build_gradma_w(
        task.model,
        algorithm.build_client_optimizer(hparams),
        algorithm.server_optimizer_from(hparams),
        **_clients_part(task, hparams),
        **_correction_part(hparams),
    )
    return algorithm.single_stage("gradma_w", process, hparams)


def _build_stages(task, hparams):
    _check_memory(task, hparams)
    process = build_gradma(
        task.model,
        algorithm.build_client_optimizer(hparams),
        **_clients_part(task, hparams),
        **_correction_part(hparams) | _server_part(task, hparams),
    )
    return algorithm.single_stage("gradma", process, hparams)


def _record(
    name: str, title: str, summary: str, hparams: type, build_stages: Callable
) -> algorithm.Algorithm:
    return algorithm.Algorithm(
        name=name,
        title=title,
        summary=summary,
        paper=_PAPER,
        hparams=hparams,
        build_stages=build_stages,
    )


GRADMA = _record(
    "gradma",
    "GradMA",
    "local steps and server momentum that do not oppose what was learned",
    GradMAHParams,
    _build_stages,
)
GRADMA_W = _record(
    "gradma_w",
    "GradMA-W",
    "FedAvg whose local steps do not oppose earlier gradients",
    GradMAWHParams,
    _build_stages_w,
)
GRADMA_S = _record(
    "gradma_s",
    "GradMA-S",
    "FedAvg whose momentum opposes no remembered update",
    GradMASHParams,
    _build_stages_s,
)
