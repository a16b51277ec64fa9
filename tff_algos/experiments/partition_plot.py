"""The plot of how a task's examples are divided among clients and classes."""

import pathlib

import matplotlib.axes
import matplotlib.ticker
import numpy as np

from tasks.task import Task
from tff_algos.experiments import figures
from tff_algos.experiments.figures import MAX_CLIENTS_NAMED, Figure, shortened, wrapped

_COLOR = "tab:blue"
_MAX_CLIENTS_SHOWN = 100
_MAX_CLASSES_NAMED = 40
_PARTITION_SIDES = (3.0, 12.0)  # inches, least and most
_CELL = 0.3  # inches, of a client and class where the sides allow
_NAMED_CELL = 0.4  # of a client with a name
_DOT_WIDTHS = (4.0, 24.0)  # points, of the largest dot: least and most


def label_counts(task: Task) -> np.ndarray:
    """Returns the number of training examples of each class for the first clients.

    Args:
      task: A task with `train_labels`.

    Returns:
      int64 [clients, classes], for up to 100 training clients and for classes up to the
      last one that occurs.
    """
    labels = [task.train_labels(c) for c in task.train_client_ids[:_MAX_CLIENTS_SHOWN]]
    num_classes = 1 + max(int(own.max(initial=0)) for own in labels)
    return np.stack([np.bincount(own, minlength=num_classes) for own in labels])


def plot_partition(task: Task, title: str, path: pathlib.Path) -> None:
    """Plots each client's number of training examples of each class.

    Like Fig. 8 of Luo et al. (https://arxiv.org/abs/2302.14307): the area of a dot is
    proportional to the number of examples.

    Args:
      task: A task with `train_labels`; its first 100 training clients are shown.
      title: The title.
      path: The output file.
    """
    counts = label_counts(task)
    # Not constrained: the dots' size follows from that of the axes.
    named = len(counts) <= MAX_CLIENTS_NAMED
    cell = np.array([_NAMED_CELL if named else _CELL, _CELL])
    sides = np.clip(cell * counts.shape, *_PARTITION_SIDES)
    figure = Figure(*sides, layout=None)
    axis = figure.subplots()
    _scatter_counts(axis, counts)
    _name_partition(axis, task, counts)
    note = f"area: training examples, {counts.max(initial=0)} at most"
    lines = title, note
    axis.set_title("\n".join(wrapped(line, max(sides[0], 4.8)) for line in lines))
    figures.save(figure, path)


def _scatter_counts(axis: matplotlib.axes.Axes, counts: np.ndarray) -> None:
    """Plots a dot for each count that is not 0."""
    num_clients, num_classes = counts.shape
    axis.set_xlim(-0.8, num_clients - 0.2)
    axis.set_ylim(-0.8, num_classes - 0.2)
    clients, classes = np.nonzero(counts)
    shown = counts[clients, classes]
    # In points; the largest dot fits a cell where these are not tiny.
    box = axis.get_position().size * axis.figure.get_size_inches() * 72
    cell = box / (num_clients + 0.6, num_classes + 0.6)
    width = np.clip(0.95 * cell.min(), *_DOT_WIDTHS)
    areas = width**2 * shown / shown.max(initial=1)
    axis.scatter(clients, classes, areas, color=_COLOR, alpha=0.6, linewidths=0)


def _name_partition(axis: matplotlib.axes.Axes, task: Task, counts: np.ndarray) -> None:
    """Labels the axes of a partition, with names where they are few and known."""
    num_clients, num_classes = counts.shape
    total = len(task.train_client_ids)
    which = f", the first {num_clients} of {total}" if total > num_clients else ""
    axis.set_xlabel(f"training client{which}")
    axis.set_ylabel("class")
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_major_locator(matplotlib.ticker.MaxNLocator(12, integer=True))
    if num_clients <= MAX_CLIENTS_NAMED:
        figures.name_ticks(axis, [shortened(name) for name in task.train_client_ids])
    names = (task.encoding or {}).get("classes", ())[:num_classes]
    if names and num_classes <= _MAX_CLASSES_NAMED:
        axis.set_yticks(range(num_classes), [shortened(str(name)) for name in names])
