"""Stages of the algorithms that are more than one process on sampled clients.

Each function is `(recipe, task, settings) -> stages`, as `Recipe.build_stages`; the
keyword arguments that it declares besides are flags of the algorithm.
"""

import math
import statistics
from typing import Annotated, Literal

import attrs

from tasks.models.projection_head import with_projection_head
from tasks.task import Task
from tff_algos.algorithms.centralized import build_centralized
from tff_algos.algorithms.fed_meta import build_fed_meta
from tff_algos.algorithms.fed_share import ShareMode, with_shared_examples
from tff_algos.algorithms.gradma import num_memory_rows
from tff_algos.clients.batching import BatchSpec
from tff_algos.experiments import server_examples
from tff_algos.experiments.declarations import Settings
from tff_algos.experiments.physical_memory import check_server_memory
from tff_algos.experiments.recipe import Recipe, has_statistics, of
from tff_algos.experiments.settings import (
    ClientOptimizer,
    ServerOptimizer,
    check_momentum,
)
from tff_algos.experiments.stage import Stage
from tff_algos.finalizers.meta_update import MAX_BYTES, TooManyBytesError
from tff_algos.hyperparameters import HyperparameterError, hparam
from tff_algos.optimizers import build_optimizer

# The paper trains 500 rounds of FedAvg and fine-tunes 200 rounds of Reptile.
_FINETUNE_SHARE = 200 / 700
# The defaults are shorter and mostly Reptile: its rounds of K steps take a seventh of the
# time of rounds of E epochs.
_DEFAULT_PRETRAIN_ROUNDS, _DEFAULT_FINETUNE_ROUNDS = 8, 24


def centralized(
    recipe: Recipe,
    task: Task,
    settings: Settings,
    *,
    updates_per_round: Annotated[int, hparam(low=1)] = 100,
) -> tuple[Stage, ...]:
    """Returns the stage of training on pooled examples.

    Args:
      recipe: The recipe.
      task: The task.
      settings: The run's settings.
      updates_per_round: Minibatch steps that count as one round.
    """
    batches = BatchSpec(
        batch_size=settings["client_batch_size"], num_steps=updates_per_round
    )
    stage = recipe.stage(
        {**settings, "clients_per_round": None},
        recipe.process(task, settings),
        batches=batches,
    )
    return (stage,)


def mime_lite(
    recipe: Recipe,
    task: Task,
    settings: Settings,
    *,
    base_momentum: Annotated[float, hparam(low=0, below=1, symbol="beta")] = 0.9,
    damped_momentum: Annotated[bool, hparam()] = False,
) -> tuple[Stage, ...]:
    """Returns the stage of MimeLite.

    Args:
      recipe: The recipe.
      task: The task.
      settings: The run's settings.
      base_momentum: Momentum of the optimizer of local steps, which clients share; only
        with sgd.
      damped_momentum: Multiply gradients by 1 - base_momentum, as in the paper; without
        it, momentum makes steps up to 1 / (1 - base_momentum) times as long.
    """
    rate = settings["client_learning_rate"]
    # m <- beta m + (1 - beta) g and a step eta m is undamped momentum of a smaller rate.
    damping = 1 - base_momentum if damped_momentum else 1.0
    base = ClientOptimizer(
        client_optimizer=settings["client_optimizer"],
        client_learning_rate=rate * damping,
        client_momentum=base_momentum,
    )
    process = recipe.process(task, settings, base_optimizer=base.build())
    return (recipe.stage(settings, process),)


def fed_share(
    recipe: Recipe,
    task: Task,
    settings: Settings,
    *,
    shared_fraction: Annotated[float, hparam(above=0, high=1)] = 0.01,
    share_mode: Annotated[ShareMode, hparam()] = "full",
    count_shared: Annotated[bool, hparam()] = True,
    warm_start_rounds: Annotated[int, hparam(low=0)] = 0,
) -> tuple[Stage, ...]:
    """Returns the stages of FedShare, whose shared set is drawn from the task.

    Args:
      recipe: The recipe.
      task: The task.
      settings: The run's settings.
      shared_fraction: Size of the shared set as a share of the training examples.
      share_mode: Whether every client gets all of the shared set (full), or each example
        goes to one client (split).
      count_shared: Count shared examples in the number that a client is weighted by.
      warm_start_rounds: Number of first rounds in which only the server trains: one pass
        over the shared set in each, with the clients' optimizer.
    """
    shared = server_examples.draw(task, shared_fraction, "shared")
    given = {} if count_shared else {"with_num_examples": True}
    stage = recipe.stage(
        settings,
        recipe.process(task, settings, **given),
        num_rounds=settings["total_rounds"] - warm_start_rounds,
        train_examples=with_shared_examples(
            lambda client_id: task.examples(client_id, "train"),
            task.train_client_ids,
            shared,
            share_mode,
            task.seed,
        ),
    )
    if not count_shared:

        def num_own(client_id: str) -> int:
            return stage.batches.num_examples(len(task.examples(client_id, "train")[0]))

        stage = attrs.evolve(stage, num_examples=num_own)
    if not warm_start_rounds:
        return (stage,)
    warm_start = Stage(
        name="warm_start",
        process=build_centralized(task.model, of(ClientOptimizer, settings).build()),
        num_rounds=warm_start_rounds,
        clients_per_round=None,
        batches=BatchSpec(batch_size=settings["client_batch_size"], num_epochs=1),
        pooled_examples=shared,
    )
    return warm_start, stage


def fed_meta(
    recipe: Recipe,
    task: Task,
    settings: Settings,
    *,
    meta_fraction: Annotated[float, hparam(above=0, high=1)] = 0.01,
    meta_overlap: Annotated[float, hparam(low=0, high=1)] = 1.0,
) -> tuple[Stage, ...]:
    """Returns the stage of FedMeta around the recipe's algorithm.

    Args:
      recipe: The recipe of the inner algorithm.
      task: The task, whose examples D_meta is drawn from.
      settings: The run's settings, of `build_fed_meta` too.
      meta_fraction: Size of the server's own data (D_meta), as a share of the training
        examples.
      meta_overlap: Share of D_meta from clients that train; the rest is from others.

    Raises:
      HyperparameterError: If D_meta is too large.
    """
    rate, decay = settings["meta_learning_rate"], settings["meta_learning_rate_decay"]
    try:
        process = build_fed_meta(
            recipe.process(task, settings),
            task.model,
            server_examples.draw(task, meta_fraction, "meta", meta_overlap),
            meta_learning_rate=(
                settings["client_learning_rate"] if rate is None else rate
            ),
            meta_learning_rate_decay=(
                settings["client_learning_rate_decay"] if decay is None else decay
            ),
            meta_steps=settings["meta_steps"],
            meta_batch_size=settings["meta_batch_size"],
            meta_reduction=settings["meta_reduction"],
            feed_back=settings["feed_back"],
        )
    except TooManyBytesError as error:
        most = meta_fraction * MAX_BYTES / error.num_bytes
        raise HyperparameterError(
            "meta_fraction",
            meta_fraction,
            f"at most {_rounded_down(most):g}: D_meta would take "
            f"{error.num_bytes / 1e6:.0f} MB, of at most {MAX_BYTES / 1e6:.0f} MB",
        ) from error
    return (recipe.stage(settings, process),)


def _rounded_down(number: float) -> float:
    """Returns a positive number with three digits."""
    unit = 10.0 ** (math.floor(math.log10(number)) - 2)
    return math.floor(number / unit) * unit


def moon_task(task: Task, settings: Settings) -> Task:
    """Returns the task with the model that MOON trains."""
    if not settings["projection_head"]:
        return task
    model = with_projection_head(task.model, task.seed)
    return attrs.evolve(task, model=model)


def moon(
    recipe: Recipe,
    task: Task,
    settings: Settings,
    *,
    projection_head: Annotated[bool, hparam()] = False,
) -> tuple[Stage, ...]:
    """Returns the stage of MOON.

    Args:
      recipe: The recipe.
      task: The task.
      settings: The run's settings.
      projection_head: Put two dense layers between the features and the classifier, as
        in the paper; the contrastive loss is then of what they return.
    """
    del projection_head  # Already part of the task's model.
    return (recipe.stage(settings, recipe.process(task, settings)),)


def q_fed_avg(recipe: Recipe, task: Task, settings: Settings) -> tuple[Stage, ...]:
    """Returns the stage of q-FedAvg."""
    lipschitz = settings["lipschitz"]
    if lipschitz is None:
        lipschitz = 1 / settings["client_learning_rate"]
    process = recipe.process(task, settings, lipschitz=lipschitz)
    return (recipe.stage(settings, process),)


def fed_dyn(
    recipe: Recipe,
    task: Task,
    settings: Settings,
    *,
    adaptive_regularization: Annotated[bool, hparam()] = False,
) -> tuple[Stage, ...]:
    """Returns the stage of FedDyn.

    Args:
      recipe: The recipe.
      task: The task.
      settings: The run's settings.
      adaptive_regularization: Make each client's alpha inversely proportional to the
        number of its examples, with alpha itself for a client with the mean number;
        reads every client's examples once, to count them.
    """
    given = {}
    if adaptive_regularization:
        given["mean_examples"] = _mean_examples(task, recipe.batches(settings))
        if settings["client_steps_per_round"] is not None:
            given["with_num_examples"] = True
    return (recipe.stage(settings, recipe.process(task, settings, **given)),)


def _mean_examples(task: Task, batches: BatchSpec) -> float:
    """Returns the mean over all clients of the examples that alpha is divided by."""
    # Epochs count every example E times, in the mean as in a client's batches.
    by_epochs = batches.num_steps is None
    count = batches.num_processed if by_epochs else batches.num_examples
    return statistics.fmean(
        count(len(task.examples(client_id, "train")[0]))
        for client_id in task.train_client_ids
    )


def gradma(recipe: Recipe, task: Task, settings: Settings) -> tuple[Stage, ...]:
    """Returns the stage of GradMA or GradMA-S."""
    memory_size = settings["memory_size"]
    check_server_memory(
        task.model,
        num_memory_rows(memory_size, len(task.train_client_ids)),
        settings["memory_dtype"],
        ("memory_size", memory_size),
    )
    # Its momentum is the algorithm's own, which is corrected before the step.
    server = attrs.evolve(of(ServerOptimizer, settings), server_momentum=0.0)
    process = recipe.process(task, settings, server_optimizer_fn=server.build())
    return (recipe.stage(settings, process),)


def mifa(recipe: Recipe, task: Task, settings: Settings) -> tuple[Stage, ...]:
    """Returns the stage of MIFA."""
    dtype = settings["memory_dtype"]
    num_rows = len(task.train_client_ids)
    check_server_memory(task.model, num_rows, dtype, ("memory_dtype", dtype))
    return (recipe.stage(settings, recipe.process(task, settings)),)


def personalized_fed_avg(
    recipe: Recipe,
    task: Task,
    settings: Settings,
    *,
    pretrain_rounds: Annotated[int | None, hparam(low=0, symbol="R1")] = None,
    finetune_rounds: Annotated[int | None, hparam(low=0, symbol="R2")] = None,
    finetune_steps: Annotated[int, hparam(low=1, symbol="K")] = 10,
    finetune_server_optimizer: Annotated[
        Literal["sgd", "adagrad", "adam", "yogi"], hparam()
    ] = "adam",
    finetune_server_learning_rate: Annotated[float, hparam(low=0)] = 0.001,
    finetune_server_momentum: Annotated[float, hparam(low=0, below=1)] = 0.0,
) -> tuple[Stage, ...]:
    """Returns the two stages of Personalized FedAvg.

    Args:
      recipe: The recipe.
      task: The task.
      settings: The run's settings. Its `total_rounds` stands for both stages.
      pretrain_rounds: Rounds of FedAvg(E).
      finetune_rounds: Rounds of Reptile(K).
      finetune_steps: Local steps of Reptile(K).
      finetune_server_optimizer: Server optimizer of Reptile(K).
      finetune_server_learning_rate: Server learning rate of Reptile(K).
      finetune_server_momentum: Server momentum of Reptile(K); only with sgd.
    """
    processes = recipe.process(
        task,
        settings,
        finetune_server_optimizer_fn=build_optimizer(
            finetune_server_optimizer,
            finetune_server_learning_rate,
            momentum=finetune_server_momentum,
        ),
        # K batches do not tell by how many examples statistics are weighted.
        with_num_examples=has_statistics(task.model),
    )
    rounds = personalized_rounds(
        settings["total_rounds"], pretrain_rounds, finetune_rounds
    )
    batches = BatchSpec(
        batch_size=settings["client_batch_size"],
        num_epochs=settings["client_epochs_per_round"],
        max_elements=settings["max_elements_per_client"],
    )
    steps = attrs.evolve(batches, num_epochs=None, num_steps=finetune_steps)
    return (
        recipe.stage(
            settings,
            processes.pretrain,
            name="fedavg",
            num_rounds=rounds[0],
            batches=batches,
        ),
        recipe.stage(
            settings,
            processes.finetune,
            name="reptile",
            num_rounds=rounds[1],
            batches=steps,
        ),
    )


def check_personalized_fed_avg(settings: Settings) -> None:
    """Checks Personalized FedAvg's settings against each other."""
    personalized_rounds(
        settings["total_rounds"],
        settings["pretrain_rounds"],
        settings["finetune_rounds"],
    )
    check_momentum(
        "finetune_server_momentum",
        settings["finetune_server_momentum"],
        settings["finetune_server_optimizer"],
    )


def personalized_rounds(
    total: int | None, pretrain: int | None, finetune: int | None
) -> tuple[int, int]:
    """Returns the rounds of FedAvg(E) and of Reptile(K).

    Args:
      total: The rounds of both, divided 5 to 2 as in the paper unless one part is set;
        `None` if each part has its own number or default.
      pretrain: The rounds of FedAvg(E), if set.
      finetune: The rounds of Reptile(K), if set.

    Raises:
      HyperparameterError: If the rounds that are set do not add up.
    """
    if total is None:
        return (
            _DEFAULT_PRETRAIN_ROUNDS if pretrain is None else pretrain,
            _DEFAULT_FINETUNE_ROUNDS if finetune is None else finetune,
        )
    given = f"(pretrain_rounds={pretrain}, finetune_rounds={finetune})"
    if finetune is None:
        share = round(total * _FINETUNE_SHARE)
        finetune = share if pretrain is None else total - pretrain
    if pretrain is None:
        pretrain = total - finetune
    if min(pretrain, finetune) < 0 or pretrain + finetune != total:
        raise HyperparameterError(
            "total_rounds", total, f"pretrain_rounds + finetune_rounds {given}"
        )
    return pretrain, finetune
