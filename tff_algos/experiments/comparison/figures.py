"""The plots of a comparison: learning curves and clients' accuracies."""

import csv
import itertools
import math
import pathlib
import types
from collections.abc import Iterator, Mapping, Sequence

import matplotlib
import matplotlib.artist
import matplotlib.axes
import matplotlib.figure
import numpy as np
from matplotlib import cbook
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tff_algos import messages
from tff_algos.experiments.comparison.columns import ACCURACY, Results
from tff_algos.experiments.comparison.errors import ComparisonError
from tff_algos.experiments.comparison.runs import Outcomes
from tff_algos.experiments.figures import (
    MARKERS,
    MAX_CLIENTS_NAMED,
    Figure,
    shortened,
    show_per_cent,
    show_rounds,
    wrapped,
)
from tff_algos.experiments.metric_names import ROUND

# Lines of a legend for which there is room beside the axes, and the height of each.
_MOST_BESIDE, _LINE_INCHES = 20, 0.17
_FONT_SIZE = 8  # points, of labels
_LABEL_INCHES = 2.6
_DASHES = ("-", "--", "-.", ":")
_MOST_SHADES = 5
_OPACITY = 0.18  # of the ranges; less for many, which would hide each other

# By label: rounds [r] and accuracies [seeds, r].
Curves = Mapping[str, tuple[np.ndarray, np.ndarray]]
# By client: its accuracies, one for each seed.
Clients = Mapping[str, Sequence[float]]


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


def plot_curves(curves: Curves, subject: str | None) -> matplotlib.figure.Figure:
    """Plots the mean over seeds by round, with the range from minimum to maximum.

    No two lines have the same lightness and dashes, so they are distinguishable in
    grayscale, and lines that end next to each other differ in lightness. The legend
    lists them in the order of their final values.

    Args:
      curves: The curves.
      subject: What all of them are of, by `page.shared_subject`.
    """
    by_end = sorted(curves, key=lambda label: -curves[label][1].mean(axis=0)[-1])
    labels = [wrapped(label, _LABEL_INCHES, _FONT_SIZE) for label in by_end]
    num_lines = [label.count("\n") + 1 for label in labels]
    beside = sum(num_lines) <= _MOST_BESIDE
    columns = np.array_split(num_lines, 1 if beside else 2)
    below = 0 if beside else max(map(sum, columns))
    figure = Figure(7.2, 4.2 + _LINE_INCHES * below)
    axis = figure.subplots()
    lines = []
    for (shade, dash), label in zip(_styles(len(curves)), by_end, strict=True):
        rounds, values = curves[label]
        low, high = values.min(axis=0), values.max(axis=0)
        opacity = _OPACITY * min(1.0, _MOST_SHADES / len(curves))
        axis.fill_between(rounds, low, high, color=shade, alpha=opacity, linewidth=0)
        marker = "o" if len(rounds) == 1 else None
        mean = values.mean(axis=0)
        lines += axis.plot(rounds, mean, dash, color=shade, marker=marker, label=label)
    show_rounds(axis)
    axis.set_ylabel("held-out accuracy")
    show_per_cent(axis.yaxis)
    title = [wrapped(subject, 4.0, 9)] if subject else []
    if any(len(values) > 1 for _, values in curves.values()):
        title.append("mean over seeds; shaded: least to greatest")
    axis.set_title("\n".join(title), fontsize=9)
    place = {"loc": "outside right upper"}
    if not beside:
        place = {"loc": "outside lower center", "ncols": len(columns)}
    figure.legend(lines, labels, fontsize=_FONT_SIZE, **place)
    return figure


def _styles(count: int) -> list[tuple[np.ndarray, str]]:
    """Returns a color and dashes for each line; neighbors differ in color."""
    # More shades could not be told apart, unless there are too few dashes for all.
    num_shades = max(min(count, _MOST_SHADES), math.ceil(count / len(_DASHES)))
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.75, num_shades))
    places = (divmod(number, num_shades) for number in range(count))
    return [
        (shades[shade], _DASHES[(shade + turn) % len(_DASHES)])
        for turn, shade in places
    ]


# The models that a client may predict with, and their colors.
_MODELS = types.MappingProxyType(
    {
        "server's model": "tab:blue",
        "personalized": "tab:orange",
        "own model": "tab:green",
        "own model, training clients": "tab:olive",
    }
)
_MEAN = types.MappingProxyType(
    # No client's shape.
    {"marker": "h", "markersize": 5, "markeredgecolor": "black"}
)
# The percentiles of fewer clients would lie between clients, so these are shown.
_LEAST_IN_BOX = 10
_CLIENT = types.MappingProxyType({"linestyle": "", "alpha": 0.6})


def client_accuracies(results: Sequence[Results | None]) -> dict[str, Clients]:
    """Returns clients' accuracies with each of `_MODELS` that they have.

    Clients without test examples are not included. Of training clients that a run
    evaluates beside the others, there are only those of the models that they keep.

    Raises:
      ComparisonError: If a file of clients cannot be read.
    """
    found: dict[str, dict[str, list[float]]] = {name: {} for name in _MODELS}
    for each in results:
        path = each and each.folder / "per_client.csv"
        if not path or not path.is_file():
            continue
        try:
            for kind, client, accuracy in _accuracies(path, _num_evaluated(each)):
                found[kind].setdefault(client, []).append(accuracy)
        except (OSError, KeyError, ValueError, TypeError, csv.Error) as error:
            reason = messages.one_line(error)
            if isinstance(error, KeyError):
                reason = f"it has no column {reason}"
            raise ComparisonError(f"{path} cannot be read: {reason}.") from error
    return {kind: clients for kind, clients in found.items() if clients}


def _num_evaluated(results: Results) -> int | None:
    """Returns how many clients a run evaluates beside training clients; None for all."""
    of = results.summary
    if "personalization_seen.num_clients" not in of:
        return None
    names = ("num_clients", "num_clients_without_test")
    return sum(int(of[f"personalization.{name}"]) for name in names)


def _accuracies(
    path: pathlib.Path, num_evaluated: int | None
) -> Iterator[tuple[str, str, float]]:
    """Yields of a file of a run's clients the model, the client and its accuracy."""
    with open(path, newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    last = max((int(line["epoch"]) for line in lines), default=0)
    # The others come after them.
    clients = dict.fromkeys(line["client_id"] for line in lines)
    evaluated = set(itertools.islice(clients, num_evaluated))
    for line in lines:
        client, accuracy = line["client_id"], float(line["accuracy"] or math.nan)
        if math.isnan(accuracy):
            continue
        if line["epoch"] == "0" and line.get("own_accuracy"):
            kind = "own model" + (client not in evaluated) * ", training clients"
            yield kind, client, float(line["own_accuracy"])
        if client not in evaluated:
            continue
        if line["epoch"] == "0":
            yield "server's model", client, accuracy
        if last and line["epoch"] == str(last):
            yield "personalized", client, accuracy


def plot_clients(
    by_label: Mapping[str, Mapping[str, Clients]], subject: str | None
) -> matplotlib.figure.Figure:
    """Plots the distribution of clients' accuracies, a box for each row and kind.

    Few clients are shown themselves, each with a shape of its own.

    Args:
      by_label: The accuracies of each row, by kind.
      subject: What all rows are of, by `page.shared_subject`.
    """
    kinds = [kind for kind in _MODELS if any(kind in own for own in by_label.values())]
    labels = [wrapped(label, _LABEL_INCHES, _FONT_SIZE) for label in by_label]
    most_lines = max(label.count("\n") + 1 for label in labels)
    row_height = max(0.12 + 0.16 * len(kinds), 0.06 + 0.14 * most_lines)
    figure = Figure(7.2, 1.8 + row_height * len(by_label))
    axis = figure.subplots()
    groups = [clients for own in by_label.values() for clients in own.values()]
    markers = _markers(groups)
    for kind in kinds:
        _draw_kind(axis, kind, list(by_label.values()), 0.8 / len(kinds), markers)
    axis.set_yticks(range(len(by_label)), labels, fontsize=_FONT_SIZE)
    axis.set_ylim(len(by_label) - 0.4, -0.6)
    axis.set_xlabel("accuracy of a client")
    show_per_cent(axis.xaxis)
    axis.grid(axis="x", alpha=0.3)
    if subject:
        figure.suptitle(wrapped(f"clients of {subject}", 6.5), fontsize=10)
    handles = _handles(kinds, groups, markers)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=4, fontsize=_FONT_SIZE
    )
    return figure


def _markers(groups: Sequence[Clients]) -> dict[str, str]:
    """Returns the shape of every client that is shown itself; alike if they are many."""
    few = [clients for clients in groups if len(clients) < _LEAST_IN_BOX]
    names = list(dict.fromkeys(itertools.chain(*few)))
    alike = len(names) > MAX_CLIENTS_NAMED
    return dict(zip(names, itertools.repeat("o") if alike else MARKERS, strict=False))


def _draw_kind(
    axis: matplotlib.axes.Axes,
    kind: str,
    rows: Sequence[Mapping[str, Clients]],
    height: float,
    markers: Mapping[str, str],
) -> None:
    """Draws one kind's boxes or clients; a row's are side by side around its place."""
    having = {
        y + (list(own).index(kind) - (len(own) - 1) / 2) * height: own[kind]
        for y, own in enumerate(rows)
        if kind in own
    }
    of_many = {
        y: list(itertools.chain(*clients.values()))
        for y, clients in having.items()
        if len(clients) >= _LEAST_IN_BOX
    }
    color = _MODELS[kind]
    for y in having.keys() - of_many.keys():
        for name, values in having[y].items():
            places = [y] * len(values)
            axis.plot(values, places, color=color, marker=markers[name], **_CLIENT)
        mean = np.mean(list(itertools.chain(*having[y].values())))
        axis.plot(mean, y, linestyle="", color=color, **_MEAN)
    if not of_many:
        return
    boxes = cbook.boxplot_stats(list(of_many.values()))
    for box, own in zip(boxes, of_many.values(), strict=True):
        # Matplotlib's whiskers end at the outermost clients between the percentiles.
        box["whislo"], box["whishi"] = np.percentile(own, (10, 90))
    axis.bxp(
        boxes,
        positions=list(of_many),
        widths=0.8 * height,
        orientation="horizontal",
        showfliers=False,
        manage_ticks=False,
        patch_artist=True,
        boxprops={"facecolor": _MODELS[kind], "alpha": 0.5},
        medianprops={"color": "black"},
        # Where most clients have the same accuracy, a box has no width.
        showmeans=True,
        meanprops={**_MEAN, "markerfacecolor": _MODELS[kind]},
    )


def _handles(
    kinds: Sequence[str], groups: Sequence[Clients], markers: Mapping[str, str]
) -> list[matplotlib.artist.Artist]:
    """Returns what the legend says of colors and marks.

    Args:
      kinds: The models.
      groups: The clients of each box, or shown in its place.
      markers: The shapes of clients that are shown themselves.
    """
    handles = [Patch(color=_MODELS[kind], alpha=0.5, label=kind) for kind in kinds]
    if max(map(len, groups), default=0) >= _LEAST_IN_BOX:
        handles += [
            Patch(facecolor="none", edgecolor="black", label="box: middle half"),
            Line2D([], [], color="black", label="whiskers: 10th to 90th percentile"),
            Line2D([], [], linestyle="", color="black", marker="|", label="median"),
        ]
    names = {name: shortened(name) for name in markers}
    if len(names) > MAX_CLIENTS_NAMED:
        names = {next(iter(markers)): "a client"}
    for name, label in names.items():
        style = {"color": "gray", "marker": markers[name], **_CLIENT}
        handles.append(Line2D([], [], label=label, **style))
    mean = Line2D([], [], linestyle="", color="lightgray", label="mean", **_MEAN)
    return [*handles, mean]
