"""What an algorithm is to the command line, and what all algorithms share."""

import numbers
from collections.abc import Callable, Mapping
from typing import Any, get_args

import attrs
import psutil
import tensorflow as tf
import tensorflow_federated as tff

from tasks.task import Task
from tff_algos import aggregators, finalizers
from tff_algos.client_works import client_report
from tff_algos.clients.batching import BatchSpec, Examples, StepBatching
from tff_algos.experiments.stage import Stage
from tff_algos.hyperparameters import (
    AT_LEAST_ONE,
    DECAY,
    MOMENTUM,
    NON_NEGATIVE,
    POSITIVE,
    HyperparameterError,
    choice,
    hparam,
)
from tff_algos.models import local_model
from tff_algos.models.block_model import BlockModel
from tff_algos.models.local_model import ModelOrFn

EVERY_TASK = "*"


@attrs.frozen(kw_only=True)
class Algorithm:
    """One `--algo` name.

    Attributes:
      name: The name.
      title: The name in the literature.
      summary: One line of help.
      paper: Authors, title, year and arXiv number.
      hparams: The frozen record of its hyperparameters.
      build_stages: `(task, hparams) -> stages`.
      settings: The paper's hyperparameters by task name (`EVERY_TASK` for all),
        where they differ from the record's and the task's defaults.
    """

    name: str
    title: str
    summary: str
    paper: str
    hparams: type
    build_stages: Callable[[Task, Any], tuple[Stage, ...]]
    settings: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)

    def hparam_fields(self) -> Mapping[str, attrs.Attribute]:
        """Returns the record's fields by name."""
        return attrs.fields_dict(self.hparams)

    def resolve(
        self,
        task_name: str,
        task_settings: Mapping[str, Any],
        chosen: Mapping[str, Any],
    ) -> Any:
        """Returns the record: `chosen`, else the pair's setting, else defaults.

        Args:
          task_name: The task, for `settings`.
          task_settings: The task's own defaults; what this algorithm does not
            have is ignored.
          chosen: What the user set.

        Raises:
          HyperparameterError: If `chosen` holds a value out of range or two
            hyperparameters of which one replaces the other.
        """
        fields = self.hparam_fields()
        values = {k: v for k, v in task_settings.items() if k in fields}
        values |= self.settings.get(EVERY_TASK, {})
        values |= self.settings.get(task_name, {})
        for name in chosen:
            replaced = fields[name].metadata.get("replaces")
            if replaced in chosen:
                raise HyperparameterError(
                    name, chosen[name], f"to be set without {replaced}, it replaces it"
                )
        return self.hparams(**values | dict(chosen))


@attrs.frozen(kw_only=True, slots=False)
class RoundHParams:
    """What every algorithm's round has; no slots, so that records can be mixed."""

    total_rounds: int = hparam(30, int, NON_NEGATIVE, "rounds to train", "T")
    client_batch_size: int = hparam(20, int, AT_LEAST_ONE, "examples per batch", "B")


@attrs.frozen(kw_only=True, slots=False)
class SampledHParams(RoundHParams):
    """Rounds on sampled clients."""

    clients_per_round: int = hparam(
        10, int, AT_LEAST_ONE, "clients sampled per round", "S"
    )
    max_elements_per_client: int | None = hparam(
        None, int, AT_LEAST_ONE, "most examples of a client used per round (all)"
    )


def client_weighting_choice(default: str) -> Any:
    """Declares how clients weigh."""
    return choice(
        default,
        ("num_examples", "uniform", "examples_processed"),
        "weight of a client's update in the mean: n_k, the number of its examples; all "
        "alike; or the number of examples in the batches of its local steps",
    )


@attrs.frozen(kw_only=True, slots=False)
class CohortHParams(SampledHParams):
    """Rounds on sampled clients whose updates are weighed."""

    client_weighting: str = client_weighting_choice("num_examples")


@attrs.frozen(kw_only=True, slots=False)
class ClientRateHParams:
    """The rate of local steps."""

    client_learning_rate: float = hparam(
        0.1, float, POSITIVE, "learning rate of local steps", "eta"
    )
    client_learning_rate_decay: float = hparam(
        1.0, float, DECAY, "factor on the client learning rate after every round"
    )


def step_batching_choice() -> Any:
    """Declares where the batches of K local steps come from."""
    return choice(
        "straddling",
        get_args(StepBatching),
        "batches of K local steps: full ones that straddle passes over the examples, "
        "or those of each pass, of min(B, n_k) examples at most",
    )


@attrs.frozen(kw_only=True, slots=False)
class LocalStepsHParams(SampledHParams, ClientRateHParams):
    """Rounds of local steps."""

    client_epochs_per_round: int = hparam(
        1, int, AT_LEAST_ONE, "local epochs per round", "E"
    )
    client_steps_per_round: int | None = hparam(
        None,
        int,
        AT_LEAST_ONE,
        "local steps per round, instead of epochs",
        "K",
        replaces="client_epochs_per_round",
    )

    step_batching: str = step_batching_choice()

    def batches(self) -> BatchSpec:
        """Returns the batches of E epochs, or of K steps where they are set."""
        steps = self.client_steps_per_round
        return BatchSpec(
            batch_size=self.client_batch_size,
            num_epochs=self.client_epochs_per_round if steps is None else None,
            num_steps=steps,
            max_elements=self.max_elements_per_client,
            step_batching=self.step_batching,
        )


@attrs.frozen(kw_only=True, slots=False)
class ClientOptimizerHParams:
    """A client optimizer of choice, which starts afresh in every round."""

    client_optimizer: str = choice("sgd", ("sgd", "adam"), "optimizer of local steps")
    client_momentum: float = hparam(
        0.0, float, MOMENTUM, "momentum of local steps (of sgd)"
    )

    def __attrs_post_init__(self):
        check_momentum("client_momentum", self.client_momentum, self.client_optimizer)


@attrs.frozen(kw_only=True, slots=False)
class UnweightedTrainingHParams(LocalStepsHParams, ClientOptimizerHParams):
    """Rounds of local training whose algorithm decides how clients weigh."""


@attrs.frozen(kw_only=True, slots=False)
class LocalTrainingHParams(UnweightedTrainingHParams, CohortHParams):
    """Rounds of local training whose updates are weighed."""


@attrs.frozen(kw_only=True, slots=False)
class ServerHParams:
    """A server optimizer's step on the aggregate."""

    server_learning_rate: float = hparam(
        1.0, float, NON_NEGATIVE, "server learning rate", "eta_g"
    )
    server_learning_rate_decay: float = hparam(
        1.0, float, DECAY, "factor on the server learning rate after every period"
    )
    server_learning_rate_decay_period: int = hparam(
        1, int, AT_LEAST_ONE, "rounds between decays of the server learning rate"
    )


@attrs.frozen(kw_only=True, slots=False)
class ServerOptimizerHParams(ServerHParams):
    """A server optimizer of choice."""

    server_optimizer: str = choice(
        "sgd", ("sgd", "adagrad", "adam", "yogi"), "optimizer of the server's step"
    )


@attrs.frozen(kw_only=True, slots=False)
class ServerMomentumHParams(ServerHParams):
    """A heavy-ball server step."""

    server_momentum: float = hparam(
        0.9, float, MOMENTUM, "momentum of the server's step", "beta_1"
    )


_OPTIMIZERS = {
    "adagrad": tff.learning.optimizers.build_adagrad,
    "adam": tff.learning.optimizers.build_adam,
    "sgd": tff.learning.optimizers.build_sgdm,
    "yogi": tff.learning.optimizers.build_yogi,
}


def check_momentum(name: str, momentum: float, optimizer: str) -> None:
    """Raises `HyperparameterError` for a momentum that the optimizer would ignore."""
    if momentum and optimizer != "sgd":
        raise HyperparameterError(name, momentum, f"0, {optimizer} has no momentum")


def build_optimizer(
    name: str,
    learning_rate: float,
    decay: float = 1.0,
    momentum: float = 0.0,
    decay_period: int = 1,
) -> tff.learning.optimizers.Optimizer:
    """Builds the named TFF optimizer.

    Args:
      name: One of "adagrad", "adam", "sgd", "yogi".
      learning_rate: Its learning rate.
      decay: Factor on the learning rate after each period.
      momentum: Heavy-ball momentum, of "sgd"; 0 is plain SGD, to the bit.
      decay_period: Steps of a period.

    Raises:
      HyperparameterError: If there is momentum and the optimizer is not "sgd".
    """
    check_momentum("momentum", momentum, name)
    # TFF's momentum 0.0 would carry an accumulator and round differently.
    kwargs = {"momentum": momentum} if momentum else {}
    optimizer = _OPTIMIZERS[name](learning_rate=learning_rate, **kwargs)
    if decay == 1.0:
        return optimizer
    return tff.learning.optimizers.schedule_learning_rate(
        optimizer,
        lambda step: learning_rate * decay ** tf.cast(step // decay_period, tf.float32),
    )


def build_client_optimizer(
    hparams: UnweightedTrainingHParams,
) -> tff.learning.optimizers.Optimizer:
    """Builds the client optimizer; the client work applies its decay."""
    return build_optimizer(
        hparams.client_optimizer,
        hparams.client_learning_rate,
        momentum=hparams.client_momentum,
    )


def server_optimizer_from(
    hparams: ServerOptimizerHParams,
) -> tff.learning.optimizers.Optimizer:
    """Builds the server optimizer that the record names."""
    return build_optimizer(
        hparams.server_optimizer,
        hparams.server_learning_rate,
        hparams.server_learning_rate_decay,
        decay_period=hparams.server_learning_rate_decay_period,
    )


def build_momentum_optimizer(
    learning_rate: float, momentum: float, decay: float = 1.0, decay_period: int = 1
) -> tff.learning.optimizers.Optimizer:
    """Builds heavy-ball SGD, v <- momentum * v + u and w <- w - rate * v.

    Momentum 0 is plain SGD, to the bit.

    Raises:
      HyperparameterError: If an argument is out of range.
    """
    ServerMomentumHParams(server_learning_rate=learning_rate, server_momentum=momentum)
    return build_optimizer("sgd", learning_rate, decay, momentum, decay_period)


def momentum_optimizer_from(
    hparams: ServerMomentumHParams,
) -> tff.learning.optimizers.Optimizer:
    """Builds the heavy-ball optimizer that the record describes."""
    return build_momentum_optimizer(
        hparams.server_learning_rate,
        hparams.server_momentum,
        hparams.server_learning_rate_decay,
        hparams.server_learning_rate_decay_period,
    )


def check_num_clients(num_clients: int) -> None:
    """Raises `HyperparameterError` for a number of clients that there cannot be."""
    is_integer = isinstance(num_clients, numbers.Integral)
    if not is_integer or isinstance(num_clients, bool) or num_clients < 1:
        raise HyperparameterError(
            "num_clients", num_clients, f"an integer {AT_LEAST_ONE}"
        )


def check_server_memory(
    model: ModelOrFn, num_rows: int, dtype: str | None, name: str, value: Any
) -> None:
    """Raises `HyperparameterError` for more remembered updates than memory holds.

    Args:
      model: The model that they are updates of.
      num_rows: How many there are.
      dtype: Theirs; None for the weights' own.
      name: The hyperparameter to name.
      value: Its value.
    """
    needed = num_rows * sum(
        spec.shape.num_elements() * tf.as_dtype(dtype or spec.dtype).size
        for spec in local_model.trainable_specs(model)
    )
    # A round has an old and a new state.
    available = psutil.virtual_memory().total / 2
    if needed > available:
        raise HyperparameterError(
            name,
            value,
            f"remembered updates of at most {available / 2**30:.1f} GiB, half of the "
            f"memory; those of {num_rows} clients take {needed / 2**30:.1f} GiB: "
            "try --memory_dtype=bfloat16, a smaller --model or fewer clients",
        )


def single_stage(
    name: str,
    process: tff.learning.templates.LearningProcess,
    hparams: Any,
    batches: BatchSpec | None = None,
    train_examples: Callable[[str], Examples] | None = None,
) -> tuple[Stage]:
    """Returns the one stage of an algorithm that trains on sampled clients.

    Args:
      name: The stage's name.
      process: What runs in every round.
      hparams: Rounds and cohort size; also the batches, unless they are given.
      batches: The clients' batches.
      train_examples: What clients train on, if not the task's examples.
    """
    stage = Stage(
        name=name,
        process=process,
        num_rounds=hparams.total_rounds,
        clients_per_round=hparams.clients_per_round,
        batches=batches or hparams.batches(),
        train_examples=train_examples,
    )
    return (stage,)


def client_weighting(hparams: CohortHParams) -> tff.learning.ClientWeighting:
    """Returns TFF's word for the record's client weighting."""
    if hparams.client_weighting == "uniform":
        return tff.learning.ClientWeighting.UNIFORM
    return tff.learning.ClientWeighting.NUM_EXAMPLES


def tells_num_examples(hparams: LocalStepsHParams, model: ModelOrFn) -> bool:
    """Returns whether clients' data must say how many examples a client has.

    The batches of epochs tell it, up to a factor that is everybody's; those of K steps
    do not.

    Args:
      hparams: The record.
      model: Whose statistics, if any, weigh by examples under uniform weights too.
    """
    weighting = getattr(hparams, "client_weighting", "uniform")
    if hparams.client_steps_per_round is None or weighting == "examples_processed":
        return False
    return weighting == "num_examples" or has_statistics(model)


def needs_full_pass(hparams: LocalStepsHParams) -> bool:
    """Returns whether the batches of a round differ from one pass over the examples."""
    by_steps = hparams.client_steps_per_round is not None
    return by_steps or hparams.client_epochs_per_round > 1


def has_statistics(model: ModelOrFn) -> bool:
    """Returns whether clients report the model's moving statistics."""
    return isinstance(model, BlockModel) and bool(model.initial_weights[1])


def compose(
    model: ModelOrFn,
    client_work: tff.learning.templates.ClientWorkProcess,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    *,
    finalizer: tff.learning.templates.FinalizerProcess | None = None,
    model_distributor: tff.learning.templates.DistributionProcess | None = None,
    model_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
) -> tff.learning.templates.LearningProcess:
    """Composes broadcast, client work, mean and a server optimizer's step.

    Args:
      model: The model that the client work trains.
      client_work: The client work.
      server_optimizer: Takes the aggregate for a gradient; needs no `finalizer`.
      finalizer: Instead of a step of `server_optimizer`.
      model_distributor: Instead of a plain broadcast.
      model_aggregator: Instead of the weighted mean.

    Raises:
      TypeError: If `model_aggregator` is not a weighted aggregation factory.
    """
    initial_weights = local_model.build_initial_weights_computation(model)
    weights_type = initial_weights.type_signature.result
    aggregator = model_aggregator or tff.aggregators.MeanFactory()
    if not isinstance(aggregator, tff.aggregators.WeightedAggregationFactory):
        raise TypeError(
            "Expected model_aggregator to be a "
            "tff.aggregators.WeightedAggregationFactory, found "
            f"{type(aggregator)}. Tip: tff.aggregators.as_weighted_aggregator."
        )
    finalizer = finalizer or finalizers.build_apply_optimizer_finalizer(
        server_optimizer, weights_type
    )
    result_type = client_work.next.type_signature.result.result.member
    if _has_statistics(result_type.update):
        aggregator = aggregators.StatisticsFactory(aggregator)
        finalizer = finalizers.build_statistics_finalizer(
            finalizer, result_type.update.statistics
        )
    return tff.learning.templates.compose_learning_process(
        initial_weights,
        model_distributor
        or tff.learning.templates.build_broadcast_process(weights_type),
        client_work,
        aggregator.create(result_type.update, result_type.update_weight),
        finalizer,
    )


def _has_statistics(update_type: tff.Type) -> bool:
    return (
        isinstance(update_type, tff.StructWithPythonType)
        and update_type.python_container is client_report.UpdateWithStatistics
    )
