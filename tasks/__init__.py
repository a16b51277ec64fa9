"""Federated learning tasks: a dataset, its clients and a model."""

import difflib
from collections.abc import Mapping
from typing import Any

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
from tff_algos import messages

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
      TaskError: If the name is unknown; the message suggests the nearest one.
    """
    if name in entries:
        return entries[name]
    form, _, argument = name.partition(":")
    if form in FORMATS and argument:
        return FORMATS[form].entry(argument)
    names = [*entries, *(f"{each.name}:{each.argument}" for each in FORMATS.values())]
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0)[0]
    raise TaskError(
        f"--task={messages.shortened(name)} is unknown, did you mean {nearest}? "
        f"One of: {', '.join(names)}."
    )


def load_task(
    name: str, options: Any = None, data_options: DataOptions | None = None
) -> Task:
    """Returns the task of a `--task` name.

    Args:
      name: A key of `TASKS`.
      options: An instance of the task's options class; None for its defaults.
      data_options: Real data or the stand-in; None for the defaults.

    Raises:
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
    return entry.load(options, data_options or DataOptions())
