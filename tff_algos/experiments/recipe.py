"""A recipe: how one `--algo` name becomes a run of an algorithm on any task.

An algorithm's builder declares what is the algorithm's own; the records of
`experiments.settings` declare what runs share. A recipe says which of them belong
together, and everything else is derived: the flags, and the builder's arguments from the
flags and the task.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
import tensorflow_federated as tff

from tasks.task import Pace, Task
from tff_algos.clients.batching import BatchSpec
from tff_algos.experiments import (
    compressed_sums,
    declarations,
    private_aggregators,
    robust_aggregators,
)
from tff_algos.experiments.declarations import EVERY_TASK, Settings
from tff_algos.experiments.errors import RunError
from tff_algos.experiments.help_texts import described
from tff_algos.experiments.settings import (
    Aggregation,
    ClientOptimizer,
    Cohort,
    LocalSteps,
    ServerOptimizer,
    Weighting,
    local_batches,
)
from tff_algos.experiments.stage import Stage
from tff_algos.hyperparameters import (
    Hyperparameter,
    HyperparameterError,
    declared,
)
from tff_algos.models import BlockModel, ModelOrFn, local_model

# Which record's flags decide an argument of a builder.
_RECORDS_BY_ARGUMENT: Mapping[str, type] = {
    "client_optimizer_fn": ClientOptimizer,
    "base_optimizer": ClientOptimizer,
    "server_optimizer_fn": ServerOptimizer,
    "server_optimizer": ServerOptimizer,
    "client_weighting": Weighting,
}
# Declared by builders, but the task's to say.
_OF_TASK = ("num_clients",)
# What replaces an aggregator, and what adds noise to one that is a sum.
_AGGREGATOR = ("aggregator", "compression")
_PRIVACY = tuple(name for name in declared(Aggregation) if name.startswith("dp"))


def of(target: Callable[..., Any], settings: Settings) -> Any:
    """Calls a record or a function with those of the settings that it declares."""
    return target(
        **{name: settings[name] for name in declared(target) if name in settings}
    )


def default_batches(settings: Settings) -> BatchSpec:
    """Returns the batches of E epochs, or of K steps where they are set."""
    return local_batches(of(Cohort, settings), of(LocalSteps, settings))


def differs_from_one_pass(settings: Settings) -> bool:
    """Returns whether a round's batches differ from one pass over the examples."""
    by_steps = settings.get("client_steps_per_round") is not None
    return by_steps or settings.get("client_epochs_per_round", 1) > 1


def sampled_clients(
    recipe: "Recipe", task: Task, settings: Settings
) -> tuple[Stage, ...]:
    """Returns the one stage of an algorithm that trains on sampled clients."""
    return (recipe.stage(settings, recipe.process(task, settings)),)


@attrs.frozen(kw_only=True)
class Recipe:
    """One `--algo` name.

    Attributes:
      name: The name.
      title: The name in the literature.
      summary: One line of help.
      paper: Authors, year and arXiv number.
      build: The builder of its learning process.
      prepare_task: From the task and the settings to the task as the algorithm needs
        it; the same task by default.
      build_stages: `(recipe, task, settings) -> stages`; its own keyword arguments, if
        it declares any, are hyperparameters too.
      also: Other functions whose hyperparameters belong to it.
      local_steps: Whether `LocalSteps` belong to it.
      without: Hyperparameters of the records that it does not have.
      defaults: Its defaults, where they differ from those declared. None makes a
        hyperparameter optional.
      unset: What holds where a hyperparameter is not set, for help.
      settings: Hyperparameters and options of the task by task name (`EVERY_TASK` for
        all), where they differ from the defaults and the task's own: those of the paper,
        or those with which a model learns in minutes.
      batches: From the settings to a client's batches in a round.
      needs_full_pass: From the settings to whether the algorithm needs one pass over a
        client's examples besides the round's batches, of a builder that can use it.
      uses_part: From the settings to whether what counts of a client is only a part of
        its batches of an epoch.
      check: Raises `HyperparameterError` for settings that do not go together.
      not_private: Why its server sees more of clients than a sum of updates, so that
        noise on a sum does not make it private; empty if it does not.
      not_chosen: For a builder without a `model_aggregator`: why one cannot choose how
        updates are aggregated.
      gradients: About how many gradients of the loss a local batch takes, or the name of
        the hyperparameter that says so.
      paces: What a model learns in few rounds, by task name (`EVERY_TASK` for all
        others), where that is little in the default number of rounds.
    """

    name: str
    title: str
    summary: str
    paper: str
    build: Callable[..., Any]
    prepare_task: Callable[[Task, Settings], Task] = lambda task, settings: task
    build_stages: Callable[..., tuple[Stage, ...]] = sampled_clients
    also: tuple[Callable[..., Any], ...] = ()
    local_steps: bool = True
    without: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = attrs.field(factory=dict)
    unset: Mapping[str, str] = attrs.field(factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    batches: Callable[[Settings], BatchSpec] = default_batches
    needs_full_pass: Callable[[Settings], bool] = differs_from_one_pass
    uses_part: Callable[[Settings], bool] = lambda settings: False
    check: Callable[[Settings], None] = lambda settings: None
    not_private: str = ""
    not_chosen: str = "it has an aggregate of its own"
    gradients: float | str = 1.0
    paces: Mapping[str, Pace] = attrs.field(factory=dict)

    def pace(self, task_name: str) -> Pace | None:
        """Returns what a model learns in few rounds; None if the default ones suffice."""
        return self.paces.get(task_name, self.paces.get(EVERY_TASK))

    def records(self) -> tuple[type, ...]:
        """Returns the records whose fields belong to it."""
        arguments = inspect.signature(self.build).parameters
        found = [r for name, r in _RECORDS_BY_ARGUMENT.items() if name in arguments]
        shared = [Cohort, LocalSteps] if self.local_steps else [Cohort]
        if "clients_per_round" not in self.without:
            shared.append(Aggregation)
        return tuple(dict.fromkeys(shared + found))

    def hyperparameters(self) -> Mapping[str, Hyperparameter]:
        """Returns its hyperparameters by name, with its own defaults."""
        found: dict[str, Hyperparameter] = {}
        for target in self.records():
            found |= {
                n: h for n, h in described(target).items() if n not in self.without
            }
        for target in (*self.also, self.build_stages, self.build):
            found |= described(target)
        defaults = self._defaults()
        return {
            name: self._with_default(hyperparameter, defaults)
            for name, hyperparameter in found.items()
            if name not in _OF_TASK and name not in self.refused
        }

    @functools.cached_property
    def refused(self) -> Mapping[str, str]:
        """Other algorithms' settings that it cannot have, and why."""
        if Aggregation not in self.records():
            return {}
        whys = {}
        if "model_aggregator" not in inspect.signature(self.build).parameters:
            whys = dict.fromkeys((*_AGGREGATOR, *_PRIVACY), self.not_chosen)
        if self.not_private:
            whys |= dict.fromkeys(_PRIVACY, self.not_private)
        return {name: f"with {self.title}: {why}" for name, why in whys.items()}

    def _defaults(self) -> Mapping[str, Any]:
        weighting = inspect.signature(self.build).parameters.get("client_weighting")
        uniform = (
            weighting and weighting.default is tff.learning.ClientWeighting.UNIFORM
        )
        return {**({"client_weighting": "uniform"} if uniform else {}), **self.defaults}

    def _with_default(
        self, hyperparameter: Hyperparameter, defaults: Mapping[str, Any]
    ) -> Hyperparameter:
        name = hyperparameter.name
        if name in self.unset:
            help_text = f"{hyperparameter.help}; by default {self.unset[name]}"
            hyperparameter = attrs.evolve(hyperparameter, help=help_text)
            defaults = {name: None, **defaults}
        if name not in defaults:
            return hyperparameter
        return attrs.evolve(
            hyperparameter,
            default=defaults[name],
            is_optional=hyperparameter.is_optional or defaults[name] is None,
        )

    def resolve(
        self,
        task_name: str,
        task_settings: Mapping[str, Any],
        chosen: Mapping[str, Any],
    ) -> Settings:
        """Returns all settings: `chosen`, else the pair's, the task's, or the default.

        Args:
          task_name: The task, for `settings`.
          task_settings: The task's own defaults; what this algorithm does not have is
            ignored.
          chosen: What the user set.

        Raises:
          HyperparameterError: If a value is invalid, or `chosen` holds two
            hyperparameters of which one replaces the other.
        """
        settings = declarations.resolve(
            self.hyperparameters(),
            [task_settings, declarations.of_task(self.settings, task_name)],
            chosen,
        )
        for each in {ClientOptimizer, ServerOptimizer} & set(self.records()):
            of(each, settings)  # Checks fields against each other.
        if "aggregator" in settings:
            robust_aggregators.check(
                settings["aggregator"], settings["clients_per_round"]
            )
            compressed_sums.check(settings)
        if "dp" in settings:
            private_aggregators.check(settings)
        self.check(settings)
        return settings

    def gradients_per_batch(self, settings: Settings) -> float:
        """Returns about how many gradients of the loss a local batch takes."""
        if isinstance(self.gradients, str):
            return float(settings[self.gradients])
        return self.gradients

    def task_defaults(self, task_name: str, options: Collection[str]) -> Settings:
        """Returns its defaults for a task's own options, of those named."""
        of_pair = declarations.of_task(self.settings, task_name)
        return {name: value for name, value in of_pair.items() if name in options}

    def stages(self, task: Task, settings: Settings) -> tuple[Stage, ...]:
        """Returns the stages of a run."""
        own = {name: settings[name] for name in declared(self.build_stages)}
        return self.build_stages(self, task, settings, **own)

    def process(self, task: Task, settings: Settings, **given: Any) -> Any:
        """Returns what the builder builds of the settings and the task.

        Args:
          task: The model and the clients.
          settings: The run's settings.
          **given: Arguments of the builder that settings and task do not decide.
        """
        derived = self._derived(task, settings)
        names = inspect.signature(self.build).parameters
        own = {
            name: settings[name] for name in declared(self.build) if name in settings
        }
        made = {
            name: make()
            for name, make in derived.items()
            if name in names and name not in given
        }
        arguments = own | made | given
        for name, parameter in names.items():
            is_needed = parameter.default is parameter.empty and parameter.kind in (
                parameter.POSITIONAL_OR_KEYWORD,
                parameter.KEYWORD_ONLY,
            )
            if is_needed and name not in arguments:
                raise RunError(
                    f"--algo={self.name}: its builder has the argument {name}, expected "
                    f"hyperparameters and any of {', '.join(derived)}."
                )
        return self.build(**arguments)

    def _derived(self, task: Task, settings: Settings) -> dict[str, Callable[[], Any]]:
        """Returns what makes each argument of a builder that a run gives, by name."""
        weighting = tff.learning.ClientWeighting
        uniform = settings.get("client_weighting") == "uniform"
        derived = {
            "model_fn": lambda: task.model,
            "num_clients": lambda: len(task.train_client_ids),
            "client_weighting": lambda: (
                weighting.UNIFORM if uniform else weighting.NUM_EXAMPLES
            ),
            "with_num_examples": lambda: self._tells_num_examples(task, settings),
            "with_full_pass": lambda: self.needs_full_pass(settings),
            "epochs_in_data": lambda: True,
        }
        for argument in (
            "client_optimizer_fn",
            "server_optimizer_fn",
            "server_optimizer",
        ):
            record = _RECORDS_BY_ARGUMENT[argument]
            derived[argument] = lambda record=record: of(record, settings).build()
        for argument in ("model_aggregator", "full_gradient_aggregator"):
            derived[argument] = lambda: self._aggregator(task, settings)
        return derived

    def _aggregator(
        self, task: Task, settings: Settings
    ) -> tff.aggregators.WeightedAggregationFactory | None:
        """Returns what combines clients' updates; None for the weighted mean.

        Raises:
          HyperparameterError: If `dp` is set and clients report statistics, or weights are
        not float32.
        """
        found = private_aggregators.guarantee(settings, len(task.train_client_ids))
        if found is None:
            return robust_aggregators.build(
                settings["aggregator"], compressed_sums.build(settings["compression"])
            )
        if has_statistics(task.model):
            raise HyperparameterError(
                "dp",
                settings["dp"],
                "a model without batch normalization, whose statistics get no noise",
            )
        # TFF clips by a float32 norm, which no other weights can be multiplied by.
        dtypes = {spec.dtype.name for spec in local_model.trainable_specs(task.model)}
        if dtypes != {"float32"}:
            raise HyperparameterError(
                "dp",
                settings["dp"],
                f"a model of float32 weights, found {', '.join(sorted(dtypes))}",
            )
        return private_aggregators.build(found, settings["dp_clip"])

    def _tells_num_examples(self, task: Task, settings: Settings) -> bool:
        """Returns whether clients' data must say how many examples a client has.

        The batches of epochs say so, up to a factor that all clients share; those of K
        steps do not, and neither do parts of an epoch.
        """
        weighting = settings.get("client_weighting", "uniform")
        by_steps = self.batches(settings).num_steps is not None
        tells = by_steps or self.uses_part(settings)
        if not tells or weighting == "examples_processed":
            return False
        return weighting == "num_examples" or has_statistics(task.model)

    def stage(
        self,
        settings: Settings,
        process: tff.learning.templates.LearningProcess,
        **others,
    ) -> Stage:
        """Returns a stage of sampled clients.

        Args:
          settings: Rounds, cohort size and batches.
          process: What runs in every round.
          **others: Other attributes of the stage, or these instead.

        Raises:
          RunError: If `process` is not a learning process.
        """
        if not isinstance(process, tff.learning.templates.LearningProcess):
            raise RunError(
                f"--algo={self.name}: its builder returned {process!r:.60}, expected a "
                "tff.learning.templates.LearningProcess."
            )
        attributes = {
            "name": self.name,
            "process": process,
            "num_rounds": settings["total_rounds"],
            "clients_per_round": settings["clients_per_round"],
            "sampling": settings.get("sampling", "fixed"),
            **others,
        }
        if "batches" not in others:
            attributes["batches"] = self.batches(settings)
        return Stage(**attributes)


def has_statistics(model: ModelOrFn) -> bool:
    """Returns whether clients report the model's moving statistics."""
    return isinstance(model, BlockModel) and any(model.statistics)
