"""Plots of a finished run, drawn from its metrics and results."""

import itertools
import pathlib
import types
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.axes
import matplotlib.figure
import matplotlib.ticker
import numpy as np

from tasks.task import Task
from tff_algos.experiments.evaluation import ClientResult, evaluated_and_seen
from tff_algos.experiments.figures import Figure
from tff_algos.experiments.metric_names import ROUND

_SIZE = (6.4, 4.0)  # inches
_INITIAL, _PERSONALIZED, _OWN = "tab:blue", "tab:orange", "tab:green"
_MAX_CLIENTS_SHOWN = 100
# So many clients have names in plots; of more, distributions are shown.
_MAX_CLIENTS_NAMED = 10
_MAX_NAME = 12  # characters
# Columns of metrics.csv in the learning curves, where a run has them.
_CURVES = types.MappingProxyType(
    {
        "train/{}": "training clients, as they train",
        "eval/{}": "held-out examples, server's model",
        "eval_seen/{}": "training clients' test examples, server's model",
        "personalization/personalized_{}": "evaluated clients, personalized models",
        "personalization_seen/personalized_{}": "training clients, personalized models",
    }
)
_ALWAYS = ("train/{}", "eval/{}")
_MOST_MARKERS = 60  # of a curve: more of them hide it
# Values that span as much are shown on a logarithmic axis.
_DECADES = 100.0
_PARTITION_SIDES = (3.6, 10.0)  # inches, least and most
_DOT_WIDTHS = (6.0, 24.0)  # points, of the largest dot: least and most


def _save(figure: matplotlib.figure.Figure, path: pathlib.Path) -> None:
    figure.savefig(path, dpi=150, bbox_inches="tight")


def _series(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[list, list]:
    points = [(row[ROUND], row[name]) for row in rows if name in row]
    return [x for x, _ in points], [y for _, y in points]


def _show_rounds(axis: matplotlib.axes.Axes) -> None:
    axis.set_xlabel("round")
    axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True, nbins=8))
    axis.grid(alpha=0.3)


def _show_per_cent(axis: matplotlib.axes.Axes, which: str = "y") -> None:
    for name in which:
        ticks = getattr(axis, f"{name}axis")
        ticks.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))


def scale_of(values: Sequence[float]) -> str:
    """Returns "log" for positive values that span decades, otherwise "linear"."""
    finite = np.asarray(values, np.float64)
    finite = finite[np.isfinite(finite)]
    if not len(finite) or finite.min() <= 0:
        return "linear"
    return "log" if finite.max() >= _DECADES * finite.min() else "linear"


def _names(results: Sequence[ClientResult]) -> list[str]:
    return [shortened(result.client_id) for result in results]


def shortened(name: str) -> str:
    """Returns a client's name, short enough to stand below an axis."""
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"


def plot_learning_curves(
    rows: Sequence[Mapping[str, Any]], title: str, path: pathlib.Path
) -> None:
    """Saves `learning_curves` to a file."""
    _save(learning_curves(rows, title), path)


def learning_curves(
    rows: Sequence[Mapping[str, Any]], title: str
) -> matplotlib.figure.Figure:
    """Returns a plot of training and held-out loss and accuracy, with stages marked."""
    figure = Figure(2 * _SIZE[0], _SIZE[1])
    axes = figure.subplots(1, 2)
    for axis, metric in zip(axes, ("loss", "accuracy"), strict=True):
        shown: list[float] = []
        for column, label in _CURVES.items():
            rounds, values = _series(rows, column.format(metric))
            if not rounds and column not in _ALWAYS:
                continue
            shown += values
            # An isolated point needs a marker to be visible.
            alone = len(rounds) == 1 or not np.all(np.isfinite(values))
            apart = not column.startswith("train") and len(rounds) <= _MOST_MARKERS
            marker = "o" if apart or alone else None
            axis.plot(rounds, values, marker=marker, markersize=3, label=label)
        _show_rounds(axis)
        axis.set_ylabel(metric)
        if metric == "accuracy":
            _show_per_cent(axis)
        else:
            axis.set_yscale(scale_of(shown))
        _mark_stages(axis, rows)
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    figure.suptitle(title)
    return figure


def _mark_stages(axis: matplotlib.axes.Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    for before, after in itertools.pairwise(rows):
        if before.get("stage") != after.get("stage"):
            axis.axvline(before[ROUND] + 0.5, color="gray", linestyle="--")
            axis.annotate(
                f" {after['stage']}",
                (before[ROUND] + 0.5, 0.02),
                xycoords=("data", "axes fraction"),
                color="gray",
            )


def plot_fairness(
    rows: Sequence[Mapping[str, Any]],
    title: str,
    path: pathlib.Path,
    num_clients: int | None = None,
) -> None:
    """Plots the accuracy's distribution over clients and the share that improves.

    Args:
      rows: The rows of `metrics.csv`.
      title: The title.
      path: The output file.
      num_clients: How many clients the distribution is over, if known.
    """
    tracked = any("improved_clients" in row for row in rows)
    figure = Figure((1 + tracked) * _SIZE[0], _SIZE[1])
    axes = figure.subplots(1, 1 + tracked, squeeze=False)[0]
    series = {
        name: np.array(_series(rows, f"eval/client_accuracy_{name}"))
        for name in ("mean", "std", "worst_decile", "best_decile")
    }
    rounds, mean = series["mean"]
    marker = "o" if len(rounds) == 1 else None
    few = num_clients is not None and num_clients < _MAX_CLIENTS_NAMED
    if not few:
        spread = series["std"][1]
        axes[0].fill_between(
            rounds,
            np.clip(mean - spread, 0, 1),
            np.clip(mean + spread, 0, 1),
            alpha=0.2,
            color=_INITIAL,
        )
    label = "mean over clients" if few else "mean, one deviation around"
    axes[0].plot(rounds, mean, marker=marker, color=_INITIAL, label=label)
    for name, end, style in (
        ("best_decile", "best", "--"),
        ("worst_decile", "worst", ":"),
    ):
        label = f"{end} {'client' if few else 'tenth'}"
        axes[0].plot(*series[name], style, marker=marker, color=_INITIAL, label=label)
    axes[0].set_ylabel("accuracy on the client's test examples")
    if tracked:
        improved_rounds, improved = _series(rows, "improved_clients")
        marker = "o" if len(improved_rounds) == 1 else None
        axes[1].plot(improved_rounds, improved, marker=marker, color=_PERSONALIZED)
        axes[1].set_ylabel("share of the round's clients no worse off")
    for axis in axes:
        axis.set_ylim(-0.02, 1.02)
        _show_rounds(axis)
        _show_per_cent(axis)
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3
    )
    figure.suptitle(title)
    _save(figure, path)


def plot_personalization_by_client(
    results: Sequence[ClientResult], title: str, path: pathlib.Path
) -> None:
    """Plots each client's personalized accuracy against its initial accuracy.

    Where clients keep models, the accuracy of their own is plotted as well.
    """
    figure = Figure(5.2, 5.2)
    axis = figure.subplots()
    initial = np.array([result.accuracy[0] for result in results])
    final = np.array([result.accuracy[-1] for result in results])
    sizes = [10 + 60 * r.num_train_examples / _most(results) for r in results]
    axis.scatter(
        initial, final, s=sizes, alpha=0.5, color=_PERSONALIZED, label="personalized"
    )
    own = _own_accuracies(results)
    if own:
        axis.scatter(initial, own, s=sizes, alpha=0.5, color=_OWN, label="own model")
        figure.legend(loc="outside lower center", ncols=2)
    low = max(0.0, min([*initial, *final, *own]) - 0.05)
    axis.plot([low, 1], [low, 1], color="gray", linestyle="--", linewidth=1)
    if len(results) <= _MAX_CLIENTS_NAMED:
        for name, x, y in zip(_names(results), initial, final, strict=True):
            axis.annotate(name, (x, y), xytext=(5, 5), textcoords="offset points")
    gains = f"{100 * np.mean(final > initial):.0f} % of clients gain"
    if own:
        gains += f", {100 * np.mean(np.array(own) > initial):.0f} % by their own model"
    axis.set_xlabel("initial accuracy")
    axis.set_ylabel("the client's accuracy" if own else "personalized accuracy")
    axis.set_title(f"{title}\n{gains} (area: examples)")
    axis.set_aspect("equal")
    _show_per_cent(axis, "xy")
    axis.grid(alpha=0.3)
    _save(figure, path)


def _own_accuracies(results: Sequence[ClientResult]) -> list[float]:
    """Returns the accuracies of the models that clients keep; none if they do not."""
    return [r.own_accuracy for r in results if r.own_accuracy is not None]


def _most(results: Sequence[ClientResult]) -> int:
    return max(1, *(result.num_train_examples for result in results))


def plot_personalization_by_epoch(
    results: Sequence[ClientResult], title: str, path: pathlib.Path
) -> None:
    """Plots accuracy by personalization epoch: of each client, or mean and spread."""
    accuracy = np.array([result.accuracy for result in results])
    epochs = np.arange(accuracy.shape[1])
    figure = Figure(*_SIZE)
    axis = figure.subplots()
    if len(results) < _MAX_CLIENTS_NAMED:
        for name, values in zip(_names(results), accuracy, strict=True):
            axis.plot(epochs, values, marker="o", markersize=3, label=name)
    else:
        low, high = np.percentile(accuracy, [10, 90], axis=0)
        axis.fill_between(
            epochs,
            low,
            high,
            alpha=0.2,
            color=_PERSONALIZED,
            label="10th to 90th percentile",
        )
        axis.plot(
            epochs,
            accuracy.mean(axis=0),
            marker="o",
            color=_PERSONALIZED,
            label="mean over clients",
        )
    axis.set_xlabel("personalization epoch")
    axis.set_ylabel("accuracy on the client's test examples")
    axis.set_title(title)
    axis.xaxis.get_major_locator().set_params(integer=True)
    _show_per_cent(axis)
    axis.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4)
    _save(figure, path)


def plot_accuracy_distribution(
    results: Sequence[ClientResult], title: str, path: pathlib.Path
) -> None:
    """Plots the clients' accuracy, before and after: of each, or as a histogram."""
    figure = Figure(*_SIZE)
    axis = figure.subplots()
    kinds = [("initial", _INITIAL, [result.accuracy[0] for result in results])]
    if len(results[0].accuracy) > 1:
        final = [result.accuracy[-1] for result in results]
        kinds.append(("personalized", _PERSONALIZED, final))
    if own := _own_accuracies(results):
        kinds.append(("own model", _OWN, own))
    if len(results) <= _MAX_CLIENTS_NAMED:
        width = 0.8 / len(kinds)
        places = np.arange(len(results))
        for number, (label, color, values) in enumerate(kinds):
            shift = (number - (len(kinds) - 1) / 2) * width
            axis.bar(places + shift, values, width, color=color, label=label)
        axis.set_xticks(places, _names(results), rotation=30 * (len(results) > 5))
        axis.set_ylabel("accuracy on the client's test examples")
        axis.set_ylim(0, 1)
        _show_per_cent(axis)
    else:
        for label, color, values in kinds:
            axis.hist(
                values, np.linspace(0, 1, 21), alpha=0.6, color=color, label=label
            )
        axis.set_xlabel("accuracy on the client's test examples")
        axis.set_ylabel("clients")
        axis.yaxis.get_major_locator().set_params(integer=True)
        _show_per_cent(axis, "x")
    axis.set_title(title)
    figure.legend(loc="outside lower center", ncols=len(kinds))
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
    # Not constrained: the dots' size follows from that of the axes.
    figure = Figure(
        np.clip(0.1 * num_clients, *_PARTITION_SIDES),
        np.clip(0.1 * num_classes, *_PARTITION_SIDES),
        layout=None,
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
        ticks.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    if num_clients <= _MAX_CLIENTS_NAMED:
        names = [shortened(name) for name in task.train_client_ids]
        axis.set_xticks(range(num_clients), names, rotation=30 * (num_clients > 5))
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
    tested = [result for result in results if result.num_test_examples]
    if task is not None:
        tested, seen = evaluated_and_seen(task, tested)
        _draw_clients(seen, f"{title}, training clients", directory, "_seen")
    if task is not None and task.train_labels is not None:
        plot_partition(task, title, directory / "partition.png")
    if rows:
        plot_learning_curves(rows, title, directory / "learning_curves.png")
    if any("eval/client_accuracy_mean" in row for row in rows):
        plot_fairness(rows, title, directory / "fairness.png", len(tested) or None)
    _draw_clients(tested, title, directory)


def _draw_clients(
    tested: Sequence[ClientResult],
    title: str,
    directory: pathlib.Path,
    ending: str = "",
) -> None:
    """Draws the plots of clients with test examples, if there are any."""
    if not tested:
        return
    plots = {"accuracy_distribution": plot_accuracy_distribution}
    if len(tested[0].accuracy) > 1:
        plots["personalization_by_client"] = plot_personalization_by_client
        plots["personalization_by_epoch"] = plot_personalization_by_epoch
    for name, plot in plots.items():
        plot(tested, title, directory / f"{name}{ending}.png")
