"""Runs of a comparison in this process, which has algorithms and tasks as objects."""

import pathlib
import traceback
from collections.abc import Mapping, Sequence
from typing import Self

import attrs

import tasks
from tasks import origin
from tasks.task import Task, TaskEntry
from tff_algos.experiments import catalog, launch, plugins, run_flags
from tff_algos.experiments.comparison.object_digests import digest
from tff_algos.experiments.comparison.rows import parse_flags
from tff_algos.experiments.declarations import Declarations
from tff_algos.experiments.plugins import Choices
from tff_algos.experiments.recipe import Recipe


@attrs.frozen
class ProgramHere:
    """Does what the command line does, in the calling thread.

    Attributes:
      choices: What `--algo` and `--task` can name; objects are among it.
      what: What it declares.
      fingerprint: Tells tasks that are objects apart; "" if the task is a name.
      versions: Of each algorithm that is an object, by its name.
    """

    choices: Choices = attrs.field(repr=False)
    what: Declarations = attrs.field(repr=False)
    fingerprint: str = ""
    versions: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def of_objects(
        cls,
        recipes: Sequence[Recipe],
        task: TaskEntry | Task | None,
        modules: Sequence[str] = (),
    ) -> Self:
        """Returns a program that knows these objects by their names.

        Args:
          recipes: Algorithms.
          task: A task, or None.
          modules: Modules of other packages whose algorithms and tasks to offer.

        Raises:
          RunError: If a module cannot be used, or a recipe has the name of another
            algorithm.
        """
        entries = [task] if isinstance(task, TaskEntry) else []
        loaded = plugins.load(modules, [*recipes, *entries])
        choices = plugins.with_objects(loaded, recipes, task)
        fingerprint = ""
        if task is not None:
            is_loaded = isinstance(task, Task)
            fingerprint = origin.fingerprint(task) if is_loaded else digest(task)
        versions = {recipe.name: digest(recipe) for recipe in recipes}
        return cls(choices, plugins.declare(choices), fingerprint, versions)

    def __call__(self, arguments: Sequence[str], log: pathlib.Path) -> int:
        """Runs it and returns its exit status; writes an error to `log`.

        Raises:
          KeyboardInterrupt: If a signal stopped the run.
        """
        values = parse_flags(arguments, self.what)
        launched = [name for name in run_flags.LAUNCH_FLAGS if name != "module"]
        try:
            result = launch.run(
                catalog.get(values.algo, self.choices.algorithms),
                tasks.get(values.task, self.choices.tasks),
                **{name: values[name].value for name in launched},
                **run_flags.settings_of(values, self.what),
            )
        except Exception:  # noqa: BLE001
            # Whatever it is, the other runs go on.
            log.write_text(traceback.format_exc(), "utf-8")
            return 1
        if result.stopped_by is not None:
            raise KeyboardInterrupt("stopped; the same call resumes")
        if result.learned_nothing:
            log.write_text(f"{result.warning}\n", "utf-8")
            return 1
        return 0
