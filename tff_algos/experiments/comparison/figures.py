"""The plots of a comparison: learning curves and clients' accuracies."""

import csv
import itertools
import math
import pathlib
import types
from collections.abc import Mapping, Sequence

import matplotlib
import matplotlib.figure
import matplotlib.ticker
import numpy as np

from tff_algos.experiments.comparison.columns import ACCURACY, Results
from tff_algos.experiments.comparison.runs import Outcomes
from tff_algos.experiments.figures import Figure
from tff_algos.experiments.metric_names import ROUND

# Lines of a legend for which there is room beside the axes.
_MOST_BESIDE = 20

# By label: rounds [r] and accuracies [seeds, r].
Curves = Mapping[str, tuple[np.ndarray, np.ndarray]]


def learning_curves(outcomes: Outcomes) -> Curves:
    """Returns the rounds [r] and accuracies [seeds, r] of completed runs, by label.

    Only rounds in which all seeds of a row were evaluated are included.
    """
    curves = {}
    for row, results in outcomes.items():
        points = [
            {
                line[ROUND]: line[ACCURACY]
                for line in each.rows
                if not math.isnan(line.get(ACCURACY, math.nan))
            }
            for each in results
            if each is not None
        ]
        rounds = sorted(set.intersection(*map(set, points))) if points else []
        if rounds:
            values = [[by_round[number] for number in rounds] for by_round in points]
            curves[row.label] = np.array(rounds), np.array(values)
    return curves


def plot_curves(curves: Curves) -> matplotlib.figure.Figure:
    """Plots the mean over seeds by round, with the range from minimum to maximum.

    Lines differ in lightness and dashes, so they are distinguishable in grayscale; the
    legend lists them in the order of their final values.
    """
    beside = len(curves) <= _MOST_BESIDE
    legend_height = 0 if beside else 0.17 * math.ceil(len(curves) / 2)
    figure = Figure(7.2, 4.2 + legend_height)
    axis = figure.subplots()
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.75, len(curves)))
    dashes = itertools.cycle(["-", "--", "-.", ":"])
    lines = []
    for shade, dash, (label, (rounds, values)) in zip(
        shades, dashes, curves.items(), strict=False
    ):
        per_cent = 100 * values
        axis.fill_between(
            rounds,
            per_cent.min(axis=0),
            per_cent.max(axis=0),
            color=shade,
            alpha=0.18,
            linewidth=0,
        )
        marker = "o" if len(rounds) == 1 else None
        mean = per_cent.mean(axis=0)
        lines += axis.plot(rounds, mean, dash, color=shade, marker=marker, label=label)
    lines.sort(key=lambda line: -line.get_ydata()[-1])
    axis.set_xlabel("round")
    axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    axis.set_ylabel("held-out accuracy, %")
    if any(len(values) > 1 for _, values in curves.values()):
        axis.set_title("mean over seeds; shaded: least to greatest", fontsize=9)
    axis.grid(alpha=0.3)
    if beside:
        figure.legend(handles=lines, loc="outside right upper", fontsize=8)
    else:
        figure.legend(handles=lines, loc="outside lower center", ncols=2, fontsize=8)
    return figure


# The models that a client may predict with, and their colors.
_MODELS = types.MappingProxyType(
    {
        "server's model": "tab:blue",
        "personalized": "tab:orange",
        "own model": "tab:green",
    }
)


def client_accuracies(results: Sequence[Results | None]) -> dict[str, list[float]]:
    """Returns clients' accuracies, of all seeds, with each of `_MODELS` that they have.

    Clients without test examples are not included.
    """
    found: dict[str, list[float]] = {name: [] for name in _MODELS}
    for each in results:
        path = each and each.folder / "per_client.csv"
        if not path or not path.is_file():
            continue
        with open(path, newline="", encoding="utf-8") as file:
            lines = [line for line in csv.DictReader(file)]
        last = max((int(line["epoch"]) for line in lines), default=0)
        for line in lines:
            accuracy = float(line["accuracy"] or math.nan)
            if math.isnan(accuracy):
                continue
            if line["epoch"] == "0":
                found["server's model"].append(accuracy)
                if line.get("own_accuracy"):
                    found["own model"].append(float(line["own_accuracy"]))
            if last and line["epoch"] == str(last):
                found["personalized"].append(accuracy)
    return {name: values for name, values in found.items() if values}


def plot_clients(
    by_label: Mapping[str, Mapping[str, Sequence[float]]],
) -> matplotlib.figure.Figure:
    """Plots the distribution of clients' accuracies, a box for each row and kind."""
    kinds = [kind for kind in _MODELS if any(kind in own for own in by_label.values())]
    figure = Figure(7.2, 1.4 + (0.12 + 0.16 * len(kinds)) * len(by_label))
    axis = figure.subplots()
    height = 0.8 / len(kinds)
    for number, kind in enumerate(kinds):
        rows = [(y, of[kind]) for y, of in enumerate(by_label.values()) if kind in of]
        axis.boxplot(
            [100 * np.asarray(values) for _, values in rows],
            positions=[y + (number - (len(kinds) - 1) / 2) * height for y, _ in rows],
            widths=0.8 * height,
            orientation="horizontal",
            whis=(10, 90),
            showfliers=False,
            manage_ticks=False,
            patch_artist=True,
            boxprops={"facecolor": _MODELS[kind], "alpha": 0.5},
            medianprops={"color": "black"},
            # Where most clients have the same accuracy, a box has no width.
            showmeans=True,
            meanprops={
                "marker": "D",
                "markersize": 4,
                "markerfacecolor": _MODELS[kind],
                "markeredgecolor": "black",
            },
        )
        axis.plot([], [], linewidth=8, alpha=0.5, color=_MODELS[kind], label=kind)
    axis.set_yticks(range(len(by_label)), list(by_label), fontsize=8)
    axis.set_ylim(len(by_label) - 0.4, -0.6)
    left, right = axis.get_xlim()
    axis.set_xlim(max(left, -1), min(right, 101))
    axis.set_xlabel("accuracy of a client, %")
    axis.set_title(
        "box: middle half of the clients; whiskers: 10th to 90th percentile; "
        "diamond: mean",
        fontsize=9,
    )
    axis.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=len(kinds), fontsize=8)
    return figure


def save(figure: matplotlib.figure.Figure, path: pathlib.Path) -> None:
    """Saves a figure."""
    figure.savefig(path, dpi=150)
