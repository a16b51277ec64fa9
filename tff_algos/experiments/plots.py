"""Plots of a finished run, drawn from its metrics and results."""

import itertools
import math
import pathlib
import types
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.artist
import matplotlib.axes
import matplotlib.colors
import matplotlib.figure
import matplotlib.ticker
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tasks.task import Task
from tff_algos.experiments import figures, partition_plot
from tff_algos.experiments.evaluation import (
    ClientResult,
    distribution,
    evaluated_and_seen,
)
from tff_algos.experiments.figures import Figure, show_per_cent, show_rounds, wrapped
from tff_algos.experiments.metric_names import ROUND

_SIZE = (6.4, 4.0)  # inches
_INITIAL, _PERSONALIZED, _OWN = "tab:blue", "tab:orange", "tab:green"
_LEGEND_LINE = 0.22  # inches
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
_MOST_MARKERS = 60  # of a curve: more of them hide it
# Values that span as much are shown on a logarithmic axis.
_DECADES = 100.0


def _series(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[list, list]:
    points = [(row[ROUND], row[name]) for row in rows if name in row]
    return [x for x, _ in points], [y for _, y in points]


def scale_of(values: Sequence[float]) -> str:
    """Returns the scale of an axis of losses.

    Args:
      values: The losses; those that are not finite are left out.

    Returns:
      "log" for positive values that span decades, "symlog" if there are others below
      them, otherwise "linear".
    """
    finite = np.asarray(values, np.float64)
    finite = finite[np.isfinite(finite)]
    if not len(finite):
        return "linear"
    if finite.min() <= 0:
        return "symlog" if finite.max() >= _DECADES else "linear"
    return "log" if finite.max() >= _DECADES * finite.min() else "linear"


def _names(results: Sequence[ClientResult]) -> list[str]:
    return [figures.shortened(result.client_id) for result in results]


def _isolated(values: Sequence[float]) -> list[int]:
    """Returns the places of values between gaps: without a marker they are invisible."""
    there = np.pad(np.isfinite(values), 1)
    return np.flatnonzero(there[1:-1] & ~there[:-2] & ~there[2:]).tolist()


def plot_learning_curves(
    rows: Sequence[Mapping[str, Any]], title: str, path: pathlib.Path
) -> None:
    """Saves `learning_curves` to a file."""
    figures.save(learning_curves(rows, title), path)


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
            if not rounds:
                continue
            shown += values
            marked = _isolated(values)
            if not column.startswith("train") and len(rounds) <= _MOST_MARKERS:
                marked = list(range(len(rounds)))
            style = {"marker": "o", "markersize": 3, "markevery": marked}
            axis.plot(rounds, values, label=label, **(style if marked else {}))
        show_rounds(axis)
        axis.set_ylabel(metric)
        if metric == "accuracy":
            show_per_cent(axis.yaxis)
        else:
            axis.set_yscale(scale_of(shown))
        _mark_stages(axis, rows)
    drawn = {line.get_label(): line for axis in axes for line in axis.get_lines()}
    handles = [drawn[label] for label in _CURVES.values() if label in drawn]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
    figure.suptitle(wrapped(title, figure.get_figwidth()))
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
    markers = "o^v" if len(rounds) == 1 else [None] * 3
    few = num_clients is not None and num_clients < figures.MAX_CLIENTS_NAMED
    if not few:
        spread = series["std"][1]
        axes[0].fill_between(
            rounds,
            np.clip(mean - spread, 0, 1),
            np.clip(mean + spread, 0, 1),
            alpha=0.2,
            color=_INITIAL,
        )
    label = "mean over clients" if few else "mean ± one standard deviation"
    axes[0].plot(rounds, mean, marker=markers[0], color=_INITIAL, label=label)
    for name, end, style, marker in (
        ("best_decile", "best", "--", markers[1]),
        ("worst_decile", "worst", ":", markers[2]),
    ):
        label = f"{end} client" if few else f"mean of the {end} tenth"
        axes[0].plot(*series[name], style, marker=marker, color=_INITIAL, label=label)
    axes[0].set_ylabel("accuracy on the client's test examples")
    if tracked:
        improved_rounds, improved = _series(rows, "improved_clients")
        marker = "o" if len(improved_rounds) == 1 else None
        axes[1].plot(improved_rounds, improved, marker=marker, color=_PERSONALIZED)
        axes[1].set_ylabel("share of the round's\nclients no worse off")
    for axis in axes:
        axis.set_ylim(-0.02, 1.02)
        show_rounds(axis)
        show_per_cent(axis.yaxis)
    handles, labels = axes[0].get_legend_handles_labels()
    ncols = 3 if few or tracked else 1
    figure.legend(handles, labels, loc="outside lower center", ncols=ncols)
    figure.suptitle(wrapped(title, figure.get_figwidth()))
    figures.save(figure, path)


def plot_personalization_by_client(
    results: Sequence[ClientResult], title: str, path: pathlib.Path
) -> None:
    """Plots each client's personalized accuracy against its initial accuracy.

    Where clients keep models, the accuracy of their own is plotted as well.
    """
    handles = _client_handles(results)
    figure = Figure(5.2, 5.2 + _LEGEND_LINE * math.ceil(len(handles) / 2))
    axis = figure.subplots()
    initial = np.array([result.accuracy[0] for result in results])
    final = np.array([result.accuracy[-1] for result in results])
    own = np.array(_own_accuracies(results))
    gains = f"{100 * np.mean(final > initial):.0f} % of clients gain"
    _scatter_clients(axis, results, final, _PERSONALIZED)
    if len(own):
        _scatter_clients(axis, results, own, _OWN)
        gains += f", {100 * np.mean(own > initial):.0f} % by their own model"
    low = max(0.0, min([*initial, *final, *own]) - 0.05)
    axis.plot([low, 1], [low, 1], color="gray", linestyle="--", linewidth=1)
    limits = low - 0.05 * (1 - low), 1 + 0.05 * (1 - low)
    axis.set(xlim=limits, ylim=limits)
    axis.set_xlabel("initial accuracy")
    axis.set_ylabel("the client's accuracy" if len(own) else "personalized accuracy")
    lines = title, f"{gains} (area: examples)"
    axis.set_title("\n".join(wrapped(line, 5.2) for line in lines))
    for ticks in (axis.xaxis, axis.yaxis):
        show_per_cent(ticks, most_ticks=7)
    axis.grid(alpha=0.3)
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
    figures.save(figure, path)


def _scatter_clients(
    axis: matplotlib.axes.Axes,
    results: Sequence[ClientResult],
    accuracies: np.ndarray,
    color: str,
) -> None:
    """Plots accuracies against the initial ones; few clients have a shape each."""
    few = len(results) <= figures.MAX_CLIENTS_NAMED
    initial = np.array([result.accuracy[0] for result in results])
    examples = np.array([result.num_train_examples for result in results])
    sizes = (40 if few else 10) + 60 * examples / max(1, examples.max())
    markers = figures.MARKERS[: len(results)] if few else "o"
    for number, marker in enumerate(markers):
        own = slice(number, None, len(markers))
        axis.scatter(
            initial[own],
            accuracies[own],
            sizes[own],
            marker=marker,
            facecolor=matplotlib.colors.to_rgba(color, 0.3),
            edgecolor=color,
        )


def _client_handles(results: Sequence[ClientResult]) -> list[matplotlib.artist.Artist]:
    """Returns what a legend says of shapes, if clients have names, and of colors."""
    handles = []
    if len(results) <= figures.MAX_CLIENTS_NAMED:
        style = {"linestyle": "", "color": "gray", "markerfacecolor": "none"}
        for name, marker in zip(_names(results), figures.MARKERS, strict=False):
            handles.append(Line2D([], [], marker=marker, label=name, **style))
    if _own_accuracies(results):
        for label, color in (("personalized", _PERSONALIZED), ("own model", _OWN)):
            handles.append(Patch(color=color, alpha=0.5, label=label))
    return handles


def _own_accuracies(results: Sequence[ClientResult]) -> list[float]:
    """Returns the accuracies of the models that clients keep; none if they do not."""
    return [r.own_accuracy for r in results if r.own_accuracy is not None]


def plot_personalization_by_epoch(
    results: Sequence[ClientResult], title: str, path: pathlib.Path
) -> None:
    """Plots accuracy by personalization epoch: of each client, or mean and tenths."""
    accuracy = np.array([result.accuracy for result in results])
    epochs = np.arange(accuracy.shape[1])
    figure = Figure(*_SIZE)
    axis = figure.subplots()
    if len(results) <= figures.MAX_CLIENTS_NAMED:
        # Dashes, so that both are seen of two clients with the same accuracies.
        styles = itertools.cycle(["o-", "o--", "o-.", "o:"])
        for name, values, style in zip(_names(results), accuracy, styles, strict=False):
            axis.plot(epochs, values, style, markersize=3, label=name)
    else:
        spread = [distribution(of_clients) for of_clients in accuracy.T]
        axis.fill_between(
            epochs,
            [each["worst_decile"] for each in spread],
            [each["best_decile"] for each in spread],
            alpha=0.2,
            color=_PERSONALIZED,
            label="from the mean of the worst tenth to that of the best",
        )
        mean = [each["mean"] for each in spread]
        style = {"marker": "o", "color": _PERSONALIZED}
        axis.plot(epochs, mean, label="mean over clients", **style)
    axis.set_xlabel("personalization epoch")
    axis.set_ylabel("accuracy on the client's test examples")
    axis.set_title(wrapped(title, _SIZE[0]))
    axis.xaxis.get_major_locator().set_params(integer=True)
    show_per_cent(axis.yaxis)
    axis.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2)
    figures.save(figure, path)


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
    if len(results) <= figures.MAX_CLIENTS_NAMED:
        width = 0.8 / len(kinds)
        places = np.arange(len(results))
        for number, (label, color, values) in enumerate(kinds):
            shift = (number - (len(kinds) - 1) / 2) * width
            axis.bar(places + shift, values, width, color=color, label=label)
        figures.name_ticks(axis, _names(results))
        axis.set_ylabel("accuracy on the\nclient's test examples")
        axis.set_ylim(0, 1.02)
        show_per_cent(axis.yaxis)
    else:
        labels, colors, values = zip(*kinds, strict=True)
        axis.hist(values, np.linspace(0, 1, 21), color=colors, label=labels)
        axis.set_xlabel("accuracy on the client's test examples")
        axis.set_ylabel("clients")
        axis.yaxis.get_major_locator().set_params(integer=True)
        show_per_cent(axis.xaxis)
    axis.set_title(wrapped(title, _SIZE[0]))
    if len(kinds) > 1:  # Alone, "initial" would read as untrained.
        figure.legend(loc="outside lower center", ncols=len(kinds))
    figures.save(figure, path)


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
        partition_plot.plot_partition(task, title, directory / "partition.png")
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
