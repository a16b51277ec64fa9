"""Algorithms and tasks of other packages beside this one's.

A module that has a sequence `RECIPES` of `Recipe`s, or `TASKS` of `tasks.task.TaskEntry`s,
is found where its package declares it as an entry point of the group "tff_algos", or
where it is named (`--module=their.module`); a named one also in the current folder.
"""

import importlib
import importlib.metadata
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import ModuleType

import attrs

import tasks
from tasks.task import Task, TaskEntry
from tff_algos.experiments import catalog, declarations
from tff_algos.experiments.errors import RunError
from tff_algos.experiments.help_texts import described
from tff_algos.experiments.recipe import Recipe
from tff_algos.experiments.run_spec import RunOptions
from tff_algos.hyperparameters import Hyperparameter

ENTRY_POINTS = "tff_algos"


class ModuleError(RunError):
    """A module, or an algorithm or a task that is an object, cannot be used."""


@attrs.frozen
class Choices:
    """What `--algo` and `--task` can name.

    Attributes:
      algorithms: Recipes by name.
      tasks: Entries by name, or tasks that are loaded.
    """

    algorithms: Mapping[str, Recipe]
    tasks: Mapping[str, TaskEntry | Task]


def own() -> Choices:
    """Returns this package's algorithms and tasks."""
    return Choices(catalog.ALGORITHMS, tasks.TASKS)


def load(
    modules: Sequence[str] = (), objects: Sequence[Recipe | TaskEntry] = ()
) -> Choices:
    """Returns this package's algorithms and tasks and those of other modules.

    Args:
      modules: Modules to import besides those that packages declare.
      objects: Algorithms and tasks that are checked like theirs, but not returned.

    Raises:
      ModuleError: If a module cannot be imported, offers nothing or a name that is
        taken, or if it or an object gives a default to what does not exist.
    """
    algorithms, entries = dict(catalog.ALGORITHMS), dict(tasks.TASKS)
    users, added = declarations.load().users, []
    kinds = {name: next(iter(of.values())).kind for name, of in users.items()}
    for name, module in _modules(modules):
        recipes = getattr(module, "RECIPES", ())
        offered = getattr(module, "TASKS", ())
        if not recipes and not offered:
            raise ModuleError(
                f"--module={name} has neither RECIPES nor TASKS: expected a sequence of "
                "recipes, of task entries, or both."
            )
        _add(algorithms, recipes, Recipe, name)
        _add(entries, offered, TaskEntry, name)
        added += [(each, f"--module={name}: ") for each in (*recipes, *offered)]
    added += [(each, "") for each in objects]
    for each, origin in added:
        _add_kinds(kinds, each, origin)
    known = {declarations.EVERY_TASK, *entries, *(each.name for each in objects)}
    for each, origin in added:
        _check_defaults(each, kinds, known, origin)
    return Choices(algorithms, entries)


def with_objects(
    choices: Choices, recipes: Iterable[Recipe], task: TaskEntry | Task | None
) -> Choices:
    """Returns choices among which there are objects, by their names.

    Args:
      choices: The others. A task of the same name is replaced: it may be the same one,
        loaded.
      recipes: Algorithms.
      task: A task, or None.

    Raises:
      RunError: If a recipe has the name of another algorithm.
    """
    algorithms = dict(choices.algorithms)
    for recipe in recipes:
        if algorithms.setdefault(recipe.name, recipe) is not recipe:
            raise RunError(
                f"there is another algorithm {recipe.name}: give the recipe another "
                "name."
            )
    entries = {} if task is None else {task.name: task}
    return Choices(algorithms, {**choices.tasks, **entries})


def _modules(names: Sequence[str]) -> Iterable[tuple[str, ModuleType]]:
    declared = importlib.metadata.entry_points(group=ENTRY_POINTS)
    if names and "" not in sys.path:
        # Programs look in their own folder instead of the current one. Last, so that no
        # file there hides a package.
        sys.path.append("")
    for name in dict.fromkeys([*(point.value for point in declared), *names]):
        try:
            yield name, importlib.import_module(name)
        except Exception as error:
            # Whatever their code raises, the user must learn whose it is.
            reason = f"{type(error).__name__}: {error}"
            if name.endswith(".py"):
                module = name.removesuffix(".py").replace("/", ".")
                reason = f"write --module={module}, as in `import`."
            raise ModuleError(
                f"--module={name} cannot be imported: {reason}"
            ) from error


def _add(known: dict, offered: Iterable, kind: type, module: str) -> None:
    for each in offered:
        if not isinstance(each, kind):
            raise ModuleError(
                f"--module={module} offers {each!r}, expected a {kind.__name__}."
            )
        if each.name in known:
            raise ModuleError(f"--module={module} offers {each.name}, which is taken.")
        known[each.name] = each


def _declared(offered: Recipe | TaskEntry) -> Mapping[str, Hyperparameter]:
    if isinstance(offered, Recipe):
        return offered.hyperparameters()
    return described(offered.options)


def _add_kinds(
    kinds: dict[str, type], offered: Recipe | TaskEntry, origin: str
) -> None:
    """Adds the kinds of what an algorithm or a task declares, by name.

    Raises:
      ModuleError: If a flag would have two kinds.
    """
    for name, field in _declared(offered).items():
        known = kinds.setdefault(name, field.kind)
        if field.kind is not known:
            raise ModuleError(
                f"{origin}{offered.name} has the setting {name} of the kind "
                f"{field.kind.__name__}, but --{name} of others has the kind "
                f"{known.__name__}; choose another name."
            )


def _check_defaults(
    offered: Recipe | TaskEntry,
    names: Collection[str],
    task_names: Collection[str],
    origin: str,
) -> None:
    """Raises `ModuleError` if it gives a default to what nobody declares.

    An algorithm's defaults on tasks of modules that are not loaded may be of settings
    that only these tasks have.
    """
    given = offered.settings
    if isinstance(offered, Recipe):
        of_tasks = [given[name] for name in given if name in task_names]
        given = {name for of_task in of_tasks for name in of_task}
    for name in given:
        if name not in names:
            nearest = declarations.nearest_names(name, names)
            meant = f"; did you mean {' or '.join(nearest)}?" if nearest else "."
            raise ModuleError(
                f"{origin}{offered.name} has a default for {name}, but nothing has "
                f"it{meant}"
            )


def declare(choices: Choices) -> declarations.Declarations:
    """Returns what the algorithms and tasks declare."""
    return declarations.Declarations(
        run=described(RunOptions),
        algorithms={
            name: declarations.Algorithm(
                name=name,
                title=recipe.title,
                summary=recipe.summary,
                paper=recipe.paper,
                fields=recipe.hyperparameters(),
                settings=recipe.settings,
                refused=recipe.refused,
            )
            for name, recipe in choices.algorithms.items()
        },
        tasks={name: _declared_task(each) for name, each in choices.tasks.items()},
        formats={name: _declared_task(each) for name, each in _forms().items()},
    )


def _declared_task(task: TaskEntry | Task) -> declarations.Task:
    if isinstance(task, Task):
        # It is loaded: nothing can be set any more.
        return declarations.Task(name=task.name, summary="", fields={}, settings={})
    return declarations.Task(
        name=task.name,
        summary=task.summary,
        fields=described(task.options),
        settings=task.settings,
    )


def _forms() -> Mapping[str, TaskEntry]:
    """Returns the entries of own data, with what stands for a path in lists."""
    return {name: form.entry(form.argument) for name, form in tasks.FORMATS.items()}
