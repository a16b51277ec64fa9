"""Algorithms and tasks of other packages beside this one's.

A module that has a sequence `RECIPES` of `Recipe`s, or `TASKS` of `tasks.task.TaskEntry`s,
is found where its package declares it as an entry point of the group "tff_algos", or
where it is named (`--module=their.module`); a named one also in the current folder.
"""

import importlib
import importlib.metadata
import itertools
import os
import pathlib
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import attrs

import tasks
from tasks.task import Task, TaskEntry
from tff_algos.experiments import catalog, declarations
from tff_algos.experiments.errors import RunError
from tff_algos.experiments.help_texts import described
from tff_algos.experiments.recipe import Recipe
from tff_algos.experiments.run_spec import RunOptions
from tff_algos.hyperparameters import Hyperparameter
from tff_algos.messages import shown

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
    added: list[tuple[Recipe | TaskEntry, str]] = []
    for origin, module in _modules(modules):
        recipes = getattr(module, "RECIPES", ())
        offered = getattr(module, "TASKS", ())
        if not recipes and not offered:
            raise ModuleError(
                f"{origin} has neither RECIPES nor TASKS: expected a sequence of "
                "recipes, of task entries, or both."
            )
        _add(algorithms, recipes, Recipe, origin)
        _add(entries, offered, TaskEntry, origin)
        added += [(each, f"{origin}: ") for each in (*recipes, *offered)]
    added += [(each, "") for each in objects]
    task_names = {declarations.EVERY_TASK, *entries, *(each.name for each in objects)}
    _check(added, declarations.load(), task_names)
    return Choices(algorithms, entries)


def _check(
    added: Sequence[tuple[Recipe | TaskEntry, str]],
    known: declarations.Declarations,
    task_names: Collection[str],
) -> None:
    """Checks algorithms and tasks against each other and this package's.

    Args:
      added: Algorithms and tasks, each with the beginning of messages.
      known: What this package's declare.
      task_names: The tasks whose options are known.

    Raises:
      ModuleError: If one cannot be used.
    """
    fields = [_declared(each, origin) for each, origin in added]
    kinds = {name: next(iter(of.values())).kind for name, of in known.users.items()}
    of_algorithms = {n for each in known.algorithms.values() for n in each.fields}
    of_tasks = {n for each in known.all_tasks for n in each.fields}
    for (each, origin), its in zip(added, fields, strict=True):
        _add_kinds(kinds, each.name, its, origin)
        (of_algorithms if isinstance(each, Recipe) else of_tasks).update(its)
    for (each, origin), its in zip(added, fields, strict=True):
        whose = f"{origin}{each.name}"
        if isinstance(each, TaskEntry):
            _check_defaults(
                whose, [each.settings], of_algorithms, "no algorithm has it"
            )
            continue
        # Defaults on tasks of modules that are not loaded may be of their options. What
        # another algorithm has may be inherited from its recipe.
        given = [each.settings[name] for name in each.settings if name in task_names]
        names = of_algorithms | of_tasks
        _check_defaults(whose, given, names, "no algorithm or task has it")
        given = [each.defaults, each.unset]
        _check_defaults(whose, given, of_algorithms, "no algorithm has it")


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
    """Yields modules, and who asks for each.

    Raises:
      ModuleError: If one cannot be imported.
    """
    declared = importlib.metadata.entry_points(group=ENTRY_POINTS)
    origins = {
        point.value: f"the entry point {point.name} = {point.value}"
        for point in declared
    }
    origins |= {name: f"--module={name}" for name in names}
    if names and "" not in sys.path:
        # Programs look in their own folder instead of the current one. Last, so that no
        # file there hides a package.
        sys.path.append("")
    for name, origin in origins.items():
        try:
            yield origin, importlib.import_module(name)
        except Exception as error:
            # Whatever their code raises, the user must learn whose it is.
            reason = f"{type(error).__name__}: {error}"
            if name.endswith(".py"):
                reason = _as_in_import(name)
            raise ModuleError(f"{origin} cannot be imported: {reason}") from error


def _as_in_import(file: str) -> str:
    """Says which module a file is."""
    path = pathlib.PurePath(os.path.normpath(file)).with_suffix("")
    if path.is_absolute() or ".." in path.parts:
        return (
            f"write --module={path.name}, as in `import`, and add its folder to the "
            "environment's PYTHONPATH."
        )
    return f"write --module={'.'.join(path.parts)}, as in `import`."


def _add(known: dict, offered: Any, kind: type, origin: str) -> None:
    if not isinstance(offered, Sequence):
        raise ModuleError(
            f"{origin} offers {shown(offered)}, expected a sequence of {kind.__name__}s."
        )
    for each in offered:
        if not isinstance(each, kind):
            raise ModuleError(
                f"{origin} offers {shown(each)}, expected a {kind.__name__}."
            )
        if each.name in known:
            raise ModuleError(f"{origin} offers {each.name}, which is taken.")
        known[each.name] = each


def _declared(offered: Recipe | TaskEntry, origin: str) -> Mapping[str, Hyperparameter]:
    """Returns what an algorithm or a task declares.

    Raises:
      ModuleError: If it cannot be read.
    """
    try:
        if isinstance(offered, Recipe):
            return offered.hyperparameters()
        if not attrs.has(offered.options):
            raise TypeError("options must be a record of tff_algos.hyperparameters")
        return described(offered.options)
    except Exception as error:
        # Whatever stands in their signatures and docstrings.
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        raise ModuleError(
            f"{origin}what {offered.name} declares cannot be read: {reason}."
        ) from error


def _add_kinds(
    kinds: dict[str, type],
    owner: str,
    fields: Mapping[str, Hyperparameter],
    origin: str,
) -> None:
    """Adds the kinds of what an algorithm or a task declares, by name.

    Raises:
      ModuleError: If a flag would have two kinds.
    """
    for name, field in fields.items():
        known = kinds.setdefault(name, field.kind)
        if field.kind is not known:
            raise ModuleError(
                f"{origin}{owner} has the setting {name} of the kind "
                f"{field.kind.__name__}, but --{name} of others has the kind "
                f"{known.__name__}; choose another name."
            )


def _check_defaults(
    owner: str, given: Iterable[Collection[str]], names: Collection[str], nobody: str
) -> None:
    """Raises `ModuleError` if an owner gives a default to what is none of the names."""
    for name in itertools.chain.from_iterable(given):
        if name not in names:
            nearest = declarations.nearest_names(name, names)
            meant = f"; did you mean {' or '.join(nearest)}?" if nearest else "."
            raise ModuleError(f"{owner} has a default for {name}, but {nobody}{meant}")


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
