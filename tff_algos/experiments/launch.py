"""A run as a function: `run(algo="gradma", task="mnist", total_rounds=20)`."""

import contextlib
import datetime
import importlib.metadata
import pathlib
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs
import tensorflow_federated as tff

import tasks
from tasks import origin
from tasks.task import METRICS, DataOptions, Pace, Task, TaskEntry
from tff_algos.clients import attacks
from tff_algos.experiments import (
    catalog,
    files,
    malicious_clients,
    model_files,
    plugins,
    private_aggregators,
    results_folder,
    robust_aggregators,
    run_folders,
    runner,
)
from tff_algos.experiments.declarations import RUN, Settings, by_user
from tff_algos.experiments.errors import RunError
from tff_algos.experiments.launch_options import Launch, Runtime, set_context
from tff_algos.experiments.recipe import Recipe
from tff_algos.experiments.run_spec import RunOptions, RunResult, RunSpec
from tff_algos.experiments.settings import check_momentum
from tff_algos.hyperparameters import (
    NONE,
    HyperparameterError,
    UnusableHyperparameterError,
    check_list,
    declared,
)
from tff_algos.messages import shown
from tff_algos.models.local_model import NoBlocksError
from tff_algos.models.untraced import untraced
from tff_algos.optimizers import build_optimizer

_SOURCE = pathlib.Path(__file__).parents[2]


def run(
    algo: str | Recipe,
    task: str | TaskEntry | Task,
    *,
    data: Literal["auto", "tff", "generated"] = "auto",
    cache_dir: str | None = None,
    output_dir: str | pathlib.Path | None = None,
    resume: bool = True,
    runtime: Runtime = "in_process",
    runtime_devices: Sequence[str] | None = None,
    ray_address: str | None = None,
    ray_workers: int | None = None,
    ray_worker_resources: Sequence[str] | None = None,
    modules: Sequence[str] = (),
    **settings: Any,
) -> RunResult:
    """Runs an algorithm on a task, with the checks and the folder of the command line.

        result = run("gradma", "mnist", total_rounds=20, memory_decay=0.3)
        result.metrics["eval/accuracy"]
        result.plot()

    Args:
      algo: An `--algo` name, or a recipe.
      task: A `--task` name, an entry, or a task that is already loaded.
      data: "tff" for the real dataset, "generated" for the stand-in, "auto" for the
        real one if it is cached.
      cache_dir: Folder of real datasets; None for TFF's own.
      output_dir: The results folder; None for a new one below `runs`.
      resume: Whether to resume the run in `output_dir`, if there is one.
      runtime: What runs TFF computations: this process, on GPUs where there are any;
        TFF's own C++ worker; or this process with the clients in Ray workers. It
        becomes TFF's default context; inside of a `with` statement that installs an
        in-process context, the run takes place in that.
      runtime_devices: Devices of the in-process runtime, such as "GPU:0"; None for all
        GPUs, or the CPU.
      ray_address: `HOST:PORT` of the Ray cluster to join; None to start Ray on this
        machine.
      ray_workers: The number of Ray workers; None for as many as there is room for.
      ray_worker_resources: What a Ray worker takes, such as "CPU:2" or "GPU:1"; None
        for "CPU:1".
      modules: Modules of other packages that `algo` and `task` may be from.
      **settings: Every other flag of the command line, by name and typed: of the run
        (`seed`, `rounds_per_eval`), the algorithm (`memory_decay`) and the task
        (`model`).

    Returns:
      The results of the run.

    Raises:
      HyperparameterError: If a setting is invalid, or nobody uses it.
      UnknownAlgorithmError: If there is no such algorithm.
      TaskError: If there is no such task, or it cannot be made as asked.
      RunError: If the run cannot start or resume.
    """
    check_list("modules", modules)
    objects = [each for each in (algo, task) if isinstance(each, Recipe | TaskEntry)]
    choices = plugins.load(modules, objects)
    launch = Launch(
        data=data,
        cache_dir=cache_dir,
        output_dir=output_dir,
        resume=resume,
        runtime=runtime,
        runtime_devices=runtime_devices,
        ray_address=ray_address,
        ray_workers=ray_workers,
        ray_worker_resources=ray_worker_resources,
        command="tff_algos.experiments.run",
    )
    recipe = catalog.get(algo, choices.algorithms) if isinstance(algo, str) else algo
    if isinstance(task, str):
        task = tasks.get(task, choices.tasks)
    for name, value, kinds in (
        ("algo", recipe, (Recipe,)),
        ("task", task, (Task, TaskEntry)),
    ):
        if not isinstance(value, kinds):
            what = " or a ".join(kind.__name__ for kind in kinds)
            raise HyperparameterError(name, value, f"a name or a {what}")
    set_context(launch)
    spec = with_folder(build_spec(recipe, task, settings, launch), launch)
    return runner.run(spec)


def resolve(
    recipe: Recipe, task: TaskEntry | Task, settings: Settings
) -> tuple[RunOptions, Any, Settings]:
    """Returns the options of the run and the task, and the algorithm's settings.

    Args:
      recipe: The algorithm.
      task: The task, or how to load it; one that is loaded has no options, None.
      settings: What was set, by name; a list may be a text, as in a flag.

    Raises:
      HyperparameterError: If a setting is invalid, or nobody uses it.
    """
    is_loaded = isinstance(task, Task)
    algo_user, task_user = f"--algo={recipe.name}", f"--task={task.name}"
    chosen = by_user(
        settings,
        {
            RUN: declared(RunOptions),
            algo_user: recipe.hyperparameters(),
            task_user: {} if is_loaded else declared(task.options),
        },
        recipe.refused,
    )
    options = RunOptions(**chosen[RUN])
    task_options = None
    if not is_loaded:
        defaults = recipe.task_defaults(task.name, declared(task.options))
        task_options = task.options(**{**defaults, **chosen[task_user]})
    task_settings = {} if is_loaded else task.settings
    return (
        options,
        task_options,
        recipe.resolve(task.name, task_settings, chosen[algo_user]),
    )


def _within(resolved: Settings, chosen: Settings, num_clients: int) -> Settings:
    """Returns settings with no more clients per round, unless chosen, than there are."""
    size = resolved.get("clients_per_round")
    if "clients_per_round" in chosen or size is None or size <= num_clients:
        return resolved
    return {**resolved, "clients_per_round": num_clients}


def _load(entry: TaskEntry, options: Any, seed: int, launch: Launch) -> Task:
    """Loads or downloads a task's data."""
    data_options = DataOptions(data=launch.data, cache_dir=launch.cache_dir, seed=seed)
    task = entry.load(options, data_options)
    if not isinstance(task, Task):
        raise RunError(
            f"--task={entry.name}: its load returned {shown(task)}, expected a Task."
        )
    _check_task(task)
    if task.data_source == "tff":
        # No flag tells one version of a file from another.
        task = attrs.evolve(task, fingerprint=origin.identity(task))
    if launch.runtime == "ray":
        # Workers read clients themselves.
        known = origin.of(task, entry.load, options, data_options)
        task = attrs.evolve(task, origin=known)
    return task


def _check_task(task: Task) -> None:
    """Raises `RunError` for a task that runs cannot train, evaluate or report."""
    if not isinstance(task.model, tff.learning.models.FunctionalModel):
        raise RunError(
            f"task {task.name}: its model is {shown(task.model)}, expected a "
            "tff.learning.models.FunctionalModel."
        )
    spec = task.model.input_spec
    if not isinstance(spec, tuple | list) or len(spec) != 2:
        raise RunError(
            f"task {task.name}: its model takes {spec}, expected a pair (x, y)."
        )
    metrics = task.model.initialize_metrics_state()
    missing = [name for name in METRICS if name not in metrics]
    if missing:
        raise RunError(
            f"task {task.name}: its model has no metric {missing[0]}, expected "
            f"{', '.join(METRICS)}."
        )
    for ids in (task.train_client_ids, task.eval_client_ids):
        wrong = [each for each in ids if not isinstance(each, str)]
        if wrong or len(set(ids)) < len(ids):
            found = shown(wrong[0]) if wrong else "one twice"
            raise RunError(
                f"task {task.name}: expected client ids to be distinct texts, found "
                f"{found}."
            )


def _hyperparameters(
    recipe: Recipe,
    options: RunOptions,
    task_options: Any,
    settings: Settings,
    guarantee: private_aggregators.Guarantee | None,
) -> dict[str, Any]:
    """Returns what determines a run's numbers, as config.json records it."""
    recorded = attrs.asdict(options)
    # How often a run is saved changes none of its numbers.
    del recorded["rounds_per_checkpoint"]
    if task_options is not None:
        recorded |= attrs.asdict(task_options)
    fields = recipe.hyperparameters()
    recorded |= {k: fields[k].format(v) for k, v in settings.items()}
    if guarantee is not None:
        # For a target it depends on the number of rounds, which may change.
        noise = guarantee.rounds.noise_multiplier
        recorded["dp_noise_multiplier"] = f"{noise:g}"
    return recorded


@contextlib.contextmanager
def _model_fits(recipe: Recipe, task: Task) -> Iterator[None]:
    """Raises `RunError` if the algorithm needs a model of another kind."""
    try:
        yield
    except NoBlocksError as error:
        raise RunError(
            f"{recipe.name} cannot train the model of {task.name}: {error}"
        ) from error


def build_spec(
    recipe: Recipe, task: TaskEntry | Task, settings: Settings, launch: Launch
) -> RunSpec:
    """Turns settings into a run; loads or downloads the task's data.

    Args:
      recipe: The algorithm.
      task: The task, or how to load it.
      settings: What was set, by name; a list may be a text, as in a flag.
      launch: Data, results folder and runtime.

    Raises:
      HyperparameterError: If a setting is invalid, or nobody uses it.
      TaskError: If the task cannot be made as asked.
      RunError: If a run cannot use the task.
    """
    # Before data are loaded or downloaded, so that errors come at once.
    _check_not_loaded(task, launch)
    options, task_options, resolved = resolve(recipe, task, settings)
    if settings.get("attack") == NONE:
        # What a flag file says of the attack goes with it.
        options = attrs.evolve(
            options, malicious_clients=None, malicious_every_round=True
        )
    malicious_clients.check_used(
        options.attack, options.malicious_clients, options.malicious_every_round
    )
    rates = {**({} if isinstance(task, Task) else task.settings), **resolved}
    personalization_optimizer = _personalization_optimizer(options, rates)
    initial_model = _initial_model(options, launch)
    task_name = task.name
    paces = {recipe.name: recipe.pace(task_name)}
    if isinstance(task, Task):
        _check_task(task)
        # Runs of one task in one process would keep each other's graphs.
        model = untraced(task.model)
        task = attrs.evolve(task, model=model, fingerprint=origin.fingerprint(task))
    else:
        paces[task_name] = task.pace
        task = _load(task, task_options, options.seed, launch)
    if task.notice:
        print(task.notice, file=sys.stderr, flush=True)
    with _model_fits(recipe, task):
        task = recipe.prepare_task(task, resolved)
    resolved = _within(resolved, settings, len(task.train_client_ids))
    if "aggregator" in resolved:
        robust_aggregators.check(resolved["aggregator"], resolved["clients_per_round"])
    attack = malicious_clients.build(
        options.attack,
        options.malicious_clients,
        options.malicious_every_round,
        task,
        resolved.get("clients_per_round"),
        options.seed,
    )
    guarantee = private_aggregators.guarantee(resolved, len(task.train_client_ids))
    initial_weights = None
    if initial_model is not None:
        private = guarantee is not None
        initial_weights = _initial_weights(initial_model, task, private)
    with _model_fits(recipe, task), attacks.applied_by_client_works() as applied:
        stages = recipe.stages(attack.task(task) if attack else task, resolved)
    if attack is not None:
        attack.check_applied(applied)
    _tell_paces(paces, sum(stage.num_rounds for stage in stages))
    if guarantee is not None and attack is not None and attack.every_round:
        raise HyperparameterError(
            "malicious_every_round",
            True,
            "False with --dp, whose epsilon assumes that all clients are sampled alike",
        )
    names = {"algo": recipe.name, "task": task_name, "dataset": task.dataset_name}
    title = f"{recipe.title} on {task.dataset_name}"
    if attack is not None:
        title += f", {attack.describe(task.train_client_ids)}"
    return RunSpec(
        title=title,
        stages=stages,
        task=task,
        output_dir=launch.output_dir or _new_output_dir(recipe, task),
        hyperparameters=names
        | _hyperparameters(recipe, options, task_options, resolved, guarantee),
        config={
            "command": launch.command,
            "runtime": launch.runtime,
            "data_source": task.data_source,
            "cache_dir": launch.cache_dir,
            "git_commit": _git_commit(),
            "versions": _versions(),
            "rounds_per_checkpoint": options.rounds_per_checkpoint,
        },
        personalization_optimizer=personalization_optimizer,
        options=options,
        attack=attack,
        gradients_per_batch=recipe.gradients_per_batch(resolved),
        guarantee=guarantee,
        initial_weights=initial_weights,
        resume=launch.resume,
    )


def _tell_paces(paces: Mapping[str, Pace | None], num_rounds: int) -> None:
    """Tells what so few rounds of an algorithm or a task do not teach."""
    for name, pace in paces.items():
        if pace is not None and 0 < num_rounds < pace.rounds:
            print(f"{name}: {pace.text}", file=sys.stderr, flush=True)


def _check_not_loaded(task: TaskEntry | Task, launch: Launch) -> None:
    """Raises `HyperparameterError` if data are chosen that a task already has."""
    for name in ("data", "cache_dir") if isinstance(task, Task) else ():
        value, usual = getattr(launch, name), getattr(Launch(), name)
        if value != usual:
            why = "with a task whose data have been loaded"
            raise UnusableHyperparameterError(name, value, why)


def _initial_model(
    options: RunOptions, launch: Launch
) -> model_files.TrainedModel | None:
    """Returns the model to start from; None for the task's own, or a checkpoint."""
    folder = options.initial_model
    if folder is None or not run_folders.starts_anew(launch.output_dir):
        return None
    with run_folders.naming_initial_model(folder):
        return model_files.load_model(folder)


def _initial_weights(
    trained: model_files.TrainedModel, task: Task, private: bool
) -> tff.learning.models.ModelWeights:
    with run_folders.naming_initial_model(str(trained.folder)):
        weights = model_files.initial_weights(trained, task.model, task.encoding)
    if private and trained.config["hyperparameters"]["dataset"] == task.dataset_name:
        raise HyperparameterError(
            "initial_model",
            str(trained.folder),
            "a run on data of another name with --dp, whose epsilon does not count what "
            f"an earlier run on {task.dataset_name} has revealed",
        )
    return weights


def _personalization_optimizer(options: RunOptions, settings: Settings):
    """Builds fine-tuning's optimizer: the training clients' unless options say.

    Args:
      options: The run's options.
      settings: The algorithm's settings, and the task's for what it does not have.
    """
    name = options.personalization_optimizer
    rate = options.personalization_learning_rate
    momentum = options.personalization_momentum
    if momentum is None:
        # The clients' momentum belongs to the clients' optimizer.
        momentum = 0.0 if name else settings.get("client_momentum", 0.0)
    name = name or settings.get("client_optimizer", "sgd")
    check_momentum("personalization_momentum", momentum, name)
    return build_optimizer(
        name, rate or settings.get("client_learning_rate", 0.02), momentum=momentum
    )


def _new_output_dir(recipe: Recipe, task: Task) -> pathlib.Path:
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = files.safe_name(f"{recipe.name}-{task.dataset_name}-{now}")
    return pathlib.Path("runs") / name


def with_folder(spec: RunSpec, launch: Launch) -> RunSpec:
    """Returns a run with a new folder of its own, unless one was chosen."""
    if launch.output_dir is not None:
        return spec
    return attrs.evolve(spec, output_dir=results_folder.create_new(spec.output_dir))


def _git_commit() -> str | None:
    """Returns the commit of the source, or None where it is not a checkout."""
    if not (_SOURCE / ".git").exists():
        return None
    try:
        return subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=_SOURCE,
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _versions() -> dict[str, str]:
    packages = ("tensorflow", "tensorflow-federated", "tf-keras", "numpy")
    versions = {name: importlib.metadata.version(name) for name in packages}
    return versions | {"python": platform.python_version()}
