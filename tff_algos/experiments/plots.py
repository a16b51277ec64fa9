"""Plots of a finished run, drawn from its metrics and results."""

import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.figure
import numpy as np

from tasks.task import Task
from tff_algos.experiments.evaluation import ClientResult
from tff_algos.experiments.metrics_log import ROUND

_SIZE = (6.4, 4.0)  # inches
_INITIAL, _PERSONALIZED = "tab:blue", "tab:orange"
_MAX_CLIENTS_SHOWN = 100
_PARTITION_SIDES = (3.6, 10.0)  # inches, least and most
_DOT_WIDTHS = (6.0, 24.0)  # points, of the largest dot: least and most


def _save(figure: matplotlib.figure.Figure, path: pathlib.Path) -> None:
    figure.savefig(path, dpi=150, bbox_inches="tight")


def _series(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[list, list]:
    points = [(row[ROUND], row[name]) for row in rows if name in row]
    return [x for x, _ in points], [y for _, y in points]


def plot_learning_curves(
    rows: Sequence[Mapping[str, Any]], title: str, path: pathlib.Path
) -> None:
    """Saves `learning_curves` to a file."""
    _save(learning_curves(rows, title), path)


def learning_curves(
    rows: Sequence[Mapping[str, Any]], title: str
) -> matplotlib.figure.Figure:
    """Returns a plot of training and held-out loss and accuracy, with stages marked."""
    figure = matplotlib.figure.Figure(figsize=(2 * _SIZE[0], _SIZE[1]))
    axes = figure.subplots(1, 2)
    for axis, metric in zip(axes, ("loss", "accuracy"), strict=True):
        for kind, label in (
            ("train", "training clients, as they train"),
            ("eval", "held-out examples, server's model"),
        ):
            rounds, values = _series(rows, f"{kind}/{metric}")
            # An isolated point needs a marker to be visible.
            alone = len(rounds) == 1 or not np.all(np.isfinite(values))
            marker = "o" if kind == "eval" or alone else None
            axis.plot(rounds, values, marker=marker, markersize=3, label=label)
        axis.set_xlabel("round")
        axis.set_ylabel(metric)
        axis.grid(alpha=0.3)
        for before, after in itertools.pairwise(rows):
            if before.get("stage") != after.get("stage"):
                axis.axvline(before[ROUND] + 0.5, color="gray", linestyle="--")
                axis.annotate(
                    f" {after['stage']}",
                    (before[ROUND] + 0.5, 0.02),
                    xycoords=("data", "axes fraction"),
                    color="gray",
                )
    axes[1].legend()
    figure.suptitle(title)
    return figure


def plot_fairness(
    rows: Sequence[Mapping[str, Any]], title: str, path: pathlib.Path
) -> None:
    """Plots the accuracy's distribution over clients and the share that improves."""
    tracked = any("improved_clients" in row for row in rows)
    figure = matplotlib.figure.Figure(figsize=((1 + tracked) * _SIZE[0], _SIZE[1]))
    axes = figure.subplots(1, 1 + tracked, squeeze=False)[0]
    series = {
        name: np.array(_series(rows, f"eval/client_accuracy_{name}"))
        for name in ("mean", "std", "worst_decile", "best_decile")
    }
    rounds, mean = series["mean"]
    marker = "o" if len(rounds) == 1 else None
    spread = series["std"][1]
    axes[0].fill_between(
        rounds, mean - spread, mean + spread, alpha=0.2, color=_INITIAL
    )
    axes[0].plot(
        rounds, mean, marker=marker, color=_INITIAL, label="mean, one deviation around"
    )
    for name, label, style in (
        ("best_decile", "best tenth", "--"),
        ("worst_decile", "worst tenth", ":"),
    ):
        axes[0].plot(*series[name], style, marker=marker, color=_INITIAL, label=label)
    axes[0].set_ylabel("accuracy on the client's test examples")
    axes[0].legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
    if tracked:
        improved_rounds, improved = _series(rows, "improved_clients")
        marker = "o" if len(improved_rounds) == 1 else None
        axes[1].plot(improved_rounds, improved, marker=marker, color=_PERSONALIZED)
        axes[1].set_ylabel("share of the round's clients no worse off")
    for axis in axes:
        axis.set_ylim(-0.02, 1.02)
        axis.set_xlabel("round")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    figure.suptitle(title)
    _save(figure, path)


def plot_personalization_by_client(
    results: Sequence[ClientResult], title: str, path: pathlib.Path
) -> None:
    """Plots each client's personalized accuracy against its initial accuracy."""
    figure = matplotlib.figure.Figure(figsize=(4.8, 4.8))
    axis = figure.subplots()
    initial = np.array([result.accuracy[0] for result in results])
    final = np.array([result.accuracy[-1] for result in results])
    sizes = [10 + 60 * r.num_train_examples / _most(results) for r in results]
    axis.scatter(initial, final, s=sizes, alpha=0.5, color=_PERSONALIZED)
    low = max(0.0, min(initial.min(), final.min()) - 0.05)
    axis.plot([low, 1], [low, 1], color="gray", linestyle="--", linewidth=1)
    better = np.mean(final > initial)
    axis.set_xlabel("initial accuracy")
    axis.set_ylabel("personalized accuracy")
    axis.set_title(f"{title}\n{100 * better:.0f}% of clients gain (area: examples)")
    axis.set_aspect("equal")
    axis.grid(alpha=0.3)
    _save(figure, path)


def _most(results: Sequence[ClientResult]) -> int:
    return max(1, *(result.num_train_examples for result in results))


def plot_personalization_by_epoch(
    results: Sequence[ClientResult], title: str, path: pathlib.Path
) -> None:
    """Plots the clients' mean accuracy by personalization epoch, with its spread."""
    accuracy = np.array([result.accuracy for result in results])
    epochs = np.arange(accuracy.shape[1])
    mean = accuracy.mean(axis=0)
    low, high = np.percentile(accuracy, [10, 90], axis=0)
    figure = matplotlib.figure.Figure(figsize=_SIZE)
    axis = figure.subplots()
    axis.fill_between(
        epochs,
        low,
        high,
        alpha=0.2,
        color=_PERSONALIZED,
        label="10th to 90th percentile",
    )
    axis.plot(epochs, mean, marker="o", color=_PERSONALIZED, label="mean over clients")
    axis.set_xlabel("personalization epoch")
    axis.set_ylabel("accuracy on the client's test examples")
    axis.set_title(title)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    _save(figure, path)


def plot_accuracy_distribution(
    results: Sequence[ClientResult], title: str, path: pathlib.Path
) -> None:
    """Plots the accuracy's distribution over clients, before and after."""
    figure = matplotlib.figure.Figure(figsize=_SIZE)
    axis = figure.subplots()
    bins = np.linspace(0, 1, 21)
    initial = [result.accuracy[0] for result in results]
    axis.hist(initial, bins, alpha=0.6, color=_INITIAL, label="initial")
    if len(results[0].accuracy) > 1:
        final = [result.accuracy[-1] for result in results]
        axis.hist(final, bins, alpha=0.6, color=_PERSONALIZED, label="personalized")
    axis.set_xlabel("accuracy on the client's test examples")
    axis.set_ylabel("clients")
    axis.set_title(title)
    axis.legend(loc="upper left")
    _save(figure, path)


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
    num_clients, num_classes = counts.shape
    figure = matplotlib.figure.Figure(
        figsize=(
            np.clip(0.1 * num_clients, *_PARTITION_SIDES),
            np.clip(0.1 * num_classes, *_PARTITION_SIDES),
        )
    )
    axis = figure.subplots()
    axis.set_xlim(-0.8, num_clients - 0.2)
    axis.set_ylim(-0.8, num_classes - 0.2)
    clients, classes = np.nonzero(counts)
    shown = counts[clients, classes]
    most = shown.max(initial=0)
    # In points; the largest dot is slightly larger than a cell.
    box = axis.get_position().size * figure.get_size_inches() * 72
    cell = box / (num_clients + 1, num_classes + 1)
    width = np.clip(1.5 * np.sqrt(cell.prod()), *_DOT_WIDTHS)
    axis.scatter(
        clients,
        classes,
        width**2 * shown / max(1, most),
        color=_INITIAL,
        alpha=0.6,
        linewidths=0,
        clip_on=False,
    )
    total = len(task.train_client_ids)
    which = f", the first {num_clients} of {total}" if total > num_clients else ""
    axis.set_xlabel(f"training client{which}")
    axis.set_ylabel("class")
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.get_major_locator().set_params(integer=True)
    axis.set_title(f"{title}\narea: training examples, {most} at most")
    _save(figure, path)


def draw_all(
    rows: Sequence[Mapping[str, Any]],
    results: Sequence[ClientResult],
    title: str,
    directory: pathlib.Path,
    task: Task | None = None,
) -> None:
    """Draws every plot that the run has data for into `directory`.

    Args:
      rows: The rows of `metrics.csv`.
      results: The evaluated clients' results.
      title: The title of the plots.
      directory: The output folder, created if missing.
      task: The task, whose partition is plotted if it has classes; None for no plot.
    """
    directory.mkdir(exist_ok=True)
    if task is not None and task.train_labels is not None:
        plot_partition(task, title, directory / "partition.png")
    if rows:
        plot_learning_curves(rows, title, directory / "learning_curves.png")
    if any("eval/client_accuracy_mean" in row for row in rows):
        plot_fairness(rows, title, directory / "fairness.png")
    tested = [result for result in results if result.num_test_examples]
    if not tested:
        return
    plot_accuracy_distribution(tested, title, directory / "accuracy_distribution.png")
    if len(tested[0].accuracy) > 1:
        plot_personalization_by_client(
            tested, title, directory / "personalization_by_client.png"
        )
        plot_personalization_by_epoch(
            tested, title, directory / "personalization_by_epoch.png"
        )
