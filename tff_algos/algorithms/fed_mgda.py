"""FedMGDA and its relatives: a step that no client's loss rises by.

Hu, Shaloudegi, Zhang, Yu: "Federated Learning Meets Multi-Objective Optimization",
2022, arXiv 2006.11489.

Clients train as in FedAvg. The server combines their model deltas by the weights that
make the combination shortest, which is a common descent direction, within a box of
half-width epsilon around the usual weights lambda_0:

                 model deltas     weights         with epsilon = 0
    FedMGDA      as they are      least norm      FedAvg
    FedMGDA+     of length one    least norm      FedAvg-n
    MGDA-Prox    of length one    least norm      FedAvg-n, clients with FedProx's term
    FedAvg-n     of length one    lambda_0

With one client FedMGDA is FedAvg. With two clients of equal weight FedMGDA+ is
FedAvg-n, whatever epsilon. With mu = 0, or one local step, MGDA-Prox is FedMGDA+.
Scaling a client's update changes nothing but FedMGDA.
"""

import functools
from collections.abc import Callable
from typing import Literal

import attrs
import tensorflow_federated as tff

from tff_algos import aggregators
from tff_algos.aggregators.min_norm_rule import ZeroUpdates
from tff_algos.algorithms import algorithm, fed_avg, fed_prox
from tff_algos.hyperparameters import NON_NEGATIVE, SHARE, choice, hparam, switch
from tff_algos.models.local_model import ModelOrFn

_PAPER = "Hu et al., 2022, arXiv 2006.11489"
_UNIFORM = tff.learning.ClientWeighting.UNIFORM

NormalizeAt = Literal["server", "clients"]


@attrs.frozen(kw_only=True, slots=False)
class BaseWeightsHParams(algorithm.LocalTrainingHParams):
    """Local training whose usual weights lambda_0 are uniform."""

    client_weighting: str = algorithm.client_weighting_choice("uniform")


@attrs.frozen(kw_only=True, slots=False)
class BoxHParams:
    """The weights that are allowed: epsilon, C."""

    epsilon: float = hparam(
        1.0,
        float,
        NON_NEGATIVE,
        "how far a client's weight may be from lambda_0; 1 for no limit",
        "epsilon",
    )
    cap: float | None = hparam(
        None, float, SHARE, "largest weight of a client (no limit)", "C"
    )
    zero_update_policy: str = choice(
        "exclude",
        ("exclude", "keep"),
        "a client whose update is zero: left out, or a point that none can improve",
    )


@attrs.frozen(kw_only=True, slots=False)
class DirectionHParams(BoxHParams):
    """The box, and how long the combination of directions is."""

    median_norm_lr: bool = switch(
        False, "multiply the combined direction by the median norm of clients' updates"
    )


@attrs.frozen(kw_only=True)
class FedMGDAHParams(BoxHParams, BaseWeightsHParams, algorithm.ServerOptimizerHParams):
    """FedMGDA: FedAvg's, and the box."""


@attrs.frozen(kw_only=True)
class FedMGDAPlusHParams(
    DirectionHParams, BaseWeightsHParams, algorithm.ServerOptimizerHParams
):
    """FedMGDA+: FedAvg's, the box, and how long a step is."""


@attrs.frozen(kw_only=True)
class MGDAProxHParams(
    DirectionHParams,
    BaseWeightsHParams,
    fed_prox.ProximalHParams,
    algorithm.ServerOptimizerHParams,
):
    """MGDA-Prox: FedMGDA+'s, and mu."""


@attrs.frozen(kw_only=True)
class FedAvgNHParams(BaseWeightsHParams, algorithm.ServerOptimizerHParams):
    """FedAvg-n: FedAvg's, and who normalises."""

    normalize_at: str = choice(
        "server",
        ("server", "clients"),
        "who normalises updates: clients need no trust in the server, nor it in them",
    )


def build_fed_mgda(
    model_fn: ModelOrFn,
    client_optimizer: tff.learning.optimizers.Optimizer,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    *,
    epsilon: float = 1.0,
    cap: float | None = None,
    zero_update_policy: ZeroUpdates = "exclude",
    client_weighting: tff.learning.ClientWeighting = _UNIFORM,
    **kwargs,
) -> tff.learning.templates.LearningProcess:
    """Builds FedMGDA.

    The server sees every client's update by itself, as `aggregators.MinNormFactory`
    says.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      client_optimizer: The optimizer of local steps, one per batch.
      server_optimizer: Takes the combined model delta for a gradient; SGD with
        learning rate 1 by default.
      epsilon: How far a weight may be from lambda_0, >= 0; 0 is FedAvg (where no
        update is zero, or zero updates are kept), 1 no limit.
      cap: The largest weight, in (0, 1]; None for no limit.
      zero_update_policy: "exclude" or "keep"; see `aggregators.MinNormFactory`.
      client_weighting: lambda_0: all alike, or by the examples they processed.
      **kwargs: The other arguments of `build_fed_avg`, but `model_aggregator`.

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `build_fed_avg`'s.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    BoxHParams(epsilon=epsilon, cap=cap, zero_update_policy=zero_update_policy)
    return fed_avg.build_fed_avg(
        model_fn,
        client_optimizer,
        server_optimizer,
        client_weighting=client_weighting,
        model_aggregator=aggregators.MinNormFactory(
            epsilon, cap=cap, zero_updates=zero_update_policy
        ),
        **kwargs,
    )


def build_fed_mgda_plus(
    model_fn: ModelOrFn,
    client_optimizer: tff.learning.optimizers.Optimizer,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    **kwargs,
) -> tff.learning.templates.LearningProcess:
    """Builds FedMGDA+, which is MGDA-Prox without a proximal term.

    Args:
      model_fn: As in `build_fed_mgda`.
      client_optimizer: As in `build_fed_mgda`.
      server_optimizer: Takes the combined direction, of length at most one, for a
        gradient: its learning rate is the length of a step. SGD with learning rate 1
        by default.
      **kwargs: The other arguments of `build_mgda_prox`; with `epsilon` 0 it is
        FedAvg-n.

    Returns:
      As `build_fed_mgda`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    return build_mgda_prox(
        model_fn, client_optimizer, server_optimizer, proximal_strength=0.0, **kwargs
    )


def build_mgda_prox(
    model_fn: ModelOrFn,
    client_optimizer: tff.learning.optimizers.Optimizer,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    *,
    proximal_strength: float,
    epsilon: float = 1.0,
    cap: float | None = None,
    zero_update_policy: ZeroUpdates = "exclude",
    median_norm_lr: bool = False,
    client_weighting: tff.learning.ClientWeighting = _UNIFORM,
    **kwargs,
) -> tff.learning.templates.LearningProcess:
    """Builds MGDA-Prox: FedMGDA+ whose clients are held near the server's model.

    Args:
      model_fn: As in `build_fed_mgda`.
      client_optimizer: As in `build_fed_mgda`.
      server_optimizer: As in `build_fed_mgda_plus`.
      proximal_strength: mu, as in `build_fed_prox`, >= 0; 0 is FedMGDA+.
      epsilon: As in `build_fed_mgda`; 0 is FedAvg-n with FedProx's term.
      cap: As in `build_fed_mgda`.
      zero_update_policy: As in `build_fed_mgda`.
      median_norm_lr: Whether the combined direction is multiplied by the median norm
        of the updates that it combines, as the authors' code can: the server learning
        rate is then a factor on that.
      client_weighting: As in `build_fed_mgda`.
      **kwargs: The other arguments of `build_fed_prox`, but `model_aggregator`.

    Returns:
      As `build_fed_mgda`.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    BoxHParams(epsilon=epsilon, cap=cap, zero_update_policy=zero_update_policy)
    return fed_prox.build_fed_prox(
        model_fn,
        client_optimizer,
        server_optimizer,
        proximal_strength=proximal_strength,
        client_weighting=client_weighting,
        model_aggregator=aggregators.MinNormFactory(
            epsilon,
            normalize=True,
            median_norm=median_norm_lr,
            cap=cap,
            zero_updates=zero_update_policy,
        ),
        **kwargs,
    )


def build_fed_avg_n(
    model_fn: ModelOrFn,
    client_optimizer: tff.learning.optimizers.Optimizer,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    *,
    normalize_at: NormalizeAt = "server",
    client_weighting: tff.learning.ClientWeighting = _UNIFORM,
    **kwargs,
) -> tff.learning.templates.LearningProcess:
    """Builds FedAvg-n: the mean of directions.

    Args:
      model_fn: As in `build_fed_mgda`.
      client_optimizer: As in `build_fed_mgda`.
      server_optimizer: As in `build_fed_mgda_plus`.
      normalize_at: "server", which then sees every client's update by itself, or
        "clients", which may then send what they like: only a mean leaves them.
      client_weighting: As in `build_fed_mgda`.
      **kwargs: The other arguments of `build_fed_avg`, but `model_aggregator`.

    Returns:
      As `build_fed_mgda`. Clients whose update is zero are left out.

    Raises:
      HyperparameterError: If `normalize_at` is neither of the two.
    """
    FedAvgNHParams(normalize_at=normalize_at)
    if normalize_at == "server":
        aggregator = aggregators.MinNormFactory(epsilon=0.0, normalize=True)
    else:
        aggregator = aggregators.NormalizedMeanFactory()
    return fed_avg.build_fed_avg(
        model_fn,
        client_optimizer,
        server_optimizer,
        client_weighting=client_weighting,
        model_aggregator=aggregator,
        **kwargs,
    )


def _build_stages(
    name: str,
    build: Callable[..., tff.learning.templates.LearningProcess],
    own_arguments: tuple[str, ...],
    task,
    hparams,
):
    process = build(
        task.model,
        algorithm.build_client_optimizer(hparams),
        algorithm.server_optimizer_from(hparams),
        client_weighting=algorithm.client_weighting(hparams),
        client_learning_rate_decay=hparams.client_learning_rate_decay,
        with_num_examples=algorithm.tells_num_examples(hparams, task.model),
        **{argument: getattr(hparams, argument) for argument in own_arguments},
    )
    return algorithm.single_stage(name, process, hparams)


_BOX = ("epsilon", "cap", "zero_update_policy")
_DIRECTION = (*_BOX, "median_norm_lr")

FED_MGDA = algorithm.Algorithm(
    name="fedmgda",
    title="FedMGDA",
    summary="combination of model deltas that lowers every client's loss",
    paper=_PAPER,
    hparams=FedMGDAHParams,
    build_stages=functools.partial(_build_stages, "fedmgda", build_fed_mgda, _BOX),
)

FED_MGDA_PLUS = algorithm.Algorithm(
    name="fedmgda_plus",
    title="FedMGDA+",
    summary="FedMGDA on directions, whatever the lengths of clients' updates",
    paper=_PAPER,
    hparams=FedMGDAPlusHParams,
    build_stages=functools.partial(
        _build_stages, "fedmgda_plus", build_fed_mgda_plus, _DIRECTION
    ),
)

MGDA_PROX = algorithm.Algorithm(
    name="mgda_prox",
    title="MGDA-Prox",
    summary="FedMGDA+ with a proximal term that damps client drift",
    paper=_PAPER,
    hparams=MGDAProxHParams,
    build_stages=functools.partial(
        _build_stages,
        "mgda_prox",
        build_mgda_prox,
        ("proximal_strength", "prox_half", *_DIRECTION),
    ),
    settings={algorithm.EVERY_TASK: {"proximal_strength": 0.1}},
)

FED_AVG_N = algorithm.Algorithm(
    name="fedavg_n",
    title="FedAvg-n",
    summary="mean of the directions of clients' updates",
    paper=_PAPER,
    hparams=FedAvgNHParams,
    build_stages=functools.partial(
        _build_stages, "fedavg_n", build_fed_avg_n, ("normalize_at",)
    ),
)
