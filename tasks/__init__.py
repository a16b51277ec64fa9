"""Federated learning tasks: a dataset, its clients and a model."""

import hashlib
from collections.abc import Mapping
from typing import Any

import attrs

import tff_algos  # noqa: F401  (makes TFF importable)
from tasks import (
    adult,
    cifar10,
    cifar100,
    emnist,
    fashion_mnist,
    mnist,
    shakespeare,
    stackoverflow,
    tiny_imagenet,
)
from tasks.own_data import from_arrays, from_client_data, from_data_frame
from tasks.own_task import FORMATS
from tasks.task import DataOptions, Task, TaskEntry, TaskError
from tff_algos import autograph, messages
from tff_algos.hyperparameters import UnusableHyperparameterError

__all__ = [
    "FORMATS",
    "TASKS",
    "DataOptions",
    "Task",
    "TaskEntry",
    "TaskError",
    "from_arrays",
    "from_client_data",
    "from_data_frame",
    "get",
    "load_task",
]

autograph.leave_to_python(__name__)

TASKS: Mapping[str, TaskEntry] = {
    entry.name: entry
    for entry in (
        emnist.ENTRY,
        shakespeare.ENTRY,
        mnist.ENTRY,
        fashion_mnist.ENTRY,
        cifar10.ENTRY,
        cifar100.ENTRY,
        tiny_imagenet.ENTRY,
        adult.ENTRY,
        stackoverflow.ENTRY,
    )
}


def get(name: str, entries: Mapping[str, TaskEntry] = TASKS) -> TaskEntry:
    """Returns the entry of a `--task` name.

    Args:
      name: The name, or a form of own data and its path, as in `csv:FILE`.
      entries: All entries by name.

    Raises:
      TaskError: If the name is unknown; the message suggests a similar one.
    """
    if name in entries:
        return entries[name]
    form, _, argument = name.partition(":")
    if form in FORMATS and argument:
        return FORMATS[form].entry(argument)
    names = [*entries, *(f"{each.name}:{each.argument}" for each in FORMATS.values())]
    raise TaskError(messages.unknown("task", name, names))


def load_task(
    name: str,
    options: Any = None,
    data_options: DataOptions | None = None,
    **settings: Any,
) -> Task:
    """Returns the task of a `--task` name.

    Args:
      name: A key of `TASKS`, or a form of own data and its path, as in `csv:FILE`.
      options: An instance of the task's options class; None for its defaults.
      data_options: Real data or the stand-in; None for the defaults.
      **settings: Fields of either, by the names of their flags, in place of those of
        `options` and `data_options`: `load_task("emnist", only_digits=True, data="tff")`.

    Raises:
      HyperparameterError: If a setting is invalid, or not one of the task's.
      TaskError: If the name is unknown or the task cannot be created as requested.
    """
    entry = get(name)
    if options is None:
        options = entry.options()
    if not isinstance(options, entry.options):
        raise TaskError(
            f"--task={name} takes {entry.options.__name__}, found "
            f"{type(options).__name__}."
        )
    data_options = data_options or DataOptions()
    of_data = {key: settings.pop(key) for key in _names(DataOptions) & settings.keys()}
    if unknown := sorted(settings.keys() - _names(entry.options)):
        choices = ", ".join(sorted(_names(entry.options) | _names(DataOptions)))
        raise UnusableHyperparameterError(
            unknown[0],
            settings[unknown[0]],
            f"with --task={name}, which has {choices}",
        )
    options = attrs.evolve(options, **settings)
    data_options = attrs.evolve(data_options, **of_data)
    task = entry.load(options, data_options)
    if task.fingerprint:
        return task
    # A run that loads its task records these as flags; a loaded task carries them.
    made_of = hashlib.sha256(repr((task.dataset_name, options)).encode()).hexdigest()
    return attrs.evolve(task, fingerprint=f"{made_of[:16]}-{data_options.seed}")


def _names(options_class: type) -> set[str]:
    return {field.name for field in attrs.fields(options_class)}
