"""The benchmark's plots."""

import pathlib
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.figure
import matplotlib.ticker
import numpy as np

from benchmarks.comparison.summary import Spread, Summary

# The words for an engine in all plots, and its color; those of one family have shades of
# one color.
_STYLES = {
    "tff_native_keras": ("TFF's runtime, Keras", "tab:red"),
    "tff_in_process_keras": ("in-process, Keras", "cornflowerblue"),
    "tff_in_process_keras_one_thread": ("Keras, one thread", "slateblue"),
    "tff_in_process_our_layers": ("in-process, our layers", "mediumblue"),
    "tff_in_process_our_layers_one_thread": ("our layers, one thread", "darkblue"),
    "tff_in_process": ("in-process, functional", "tab:blue"),
    "tff_ray": ("in Ray workers", "tab:cyan"),
    "fedjax": ("FedJAX", "tab:green"),
    "pfl": ("pfl", "tab:purple"),
    "flower": ("Flower", "tab:orange"),
    "bare_torch": ("bare PyTorch loop", "0.35"),
    "bare_jax": ("bare JAX loop", "0.55"),
    "bare_tf": ("bare TF loop", "black"),
}
_MARKERS = {"fedjax": "s", "bare_tf": "D", "tff_in_process": "^"}
_TITLE_WIDTH = 55  # Characters, beside another panel.
_NUM_ROUNDS = np.unique(np.geomspace(1, 1000, 60).round())


def _save(figure: matplotlib.figure.Figure, path: pathlib.Path) -> None:
    figure.savefig(path, dpi=150, bbox_inches="tight")


def _words(engine: str) -> str:
    return _STYLES.get(engine, (engine, ""))[0]


def _color(engine: str) -> str:
    return _STYLES.get(engine, ("", "tab:gray"))[1]


def _plain_ticks(axis) -> None:
    """Labels the powers of ten of a logarithmic axis as numbers: 0.01, 1, 100."""
    axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(matplotlib.ticker.NullFormatter())


def _grid(num_panels: int, width: float, height: float):
    columns = min(2, num_panels)
    rows = -(-num_panels // columns)
    figure = matplotlib.figure.Figure(
        figsize=(columns * width, rows * height), layout="constrained"
    )
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for unused in axes[num_panels:]:
        unused.set_visible(False)
    return figure, axes


def plot_rounds(
    workloads: Mapping[str, Mapping[str, Summary]], path: pathlib.Path
) -> None:
    """Plots seconds per round with their spread, with a panel for each workload.

    Args:
      workloads: The measurements by engine, by title.
      path: PNG file to write.
    """
    figure, axes = _grid(len(workloads), 6.4, 3.4)
    for axis, (title, summaries) in zip(axes, workloads.items(), strict=False):
        names = sorted(
            summaries, key=lambda n: summaries[n].seconds_per_round.median, reverse=True
        )
        for row, name in enumerate(names):
            seconds = summaries[name].seconds_per_round
            axis.plot(
                [seconds.low, seconds.high],
                [row, row],
                color=_color(name),
                linewidth=5,
                alpha=0.35,
                solid_capstyle="round",
            )
            axis.plot(seconds.median, row, "o", color=_color(name))
            axis.annotate(
                f"{seconds.median:.3g} s",
                (seconds.high, row),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        axis.set_yticks(range(len(names)), [*map(_words, names)])
        axis.set_ylim(-0.6, len(names) - 0.4)
        axis.set_xscale("log")
        low = min(s.seconds_per_round.low for s in summaries.values())
        high = max(s.seconds_per_round.high for s in summaries.values())
        axis.set_xlim(low / 1.6, high * 3)  # Room for the last number.
        _plain_ticks(axis.xaxis)
        axis.set_xlabel("seconds per round: median, minimum to maximum")
        axis.set_title(textwrap.fill(title, _TITLE_WIDTH), fontsize=10)
        axis.grid(axis="x", which="both", alpha=0.25)
    figure.suptitle("A round of Federated Averaging")
    _save(figure, path)


def plot_time_to_rounds(
    workloads: Mapping[str, Mapping[str, Summary]], path: pathlib.Path
) -> None:
    """Plots the time from the start of a process to the end of its n-th round."""
    figure, axes = _grid(len(workloads), 6.4, 4.2)
    for axis, (title, summaries) in zip(axes, workloads.items(), strict=False):
        for name, own in summaries.items():
            seconds = (
                own.start_up_seconds + (_NUM_ROUNDS - 1) * own.seconds_per_round.median
            )
            axis.plot(
                _NUM_ROUNDS,
                seconds,
                color=_color(name),
                linewidth=2.5 if name.startswith("tff_") else 1.5,
                linestyle="--" if name.startswith("bare_") else "-",
                label=_words(name),
            )
        axis.set_xscale("log")
        axis.set_yscale("log")
        _plain_ticks(axis.xaxis)
        _plain_ticks(axis.yaxis)
        axis.set_xlabel("rounds")
        axis.set_ylabel("seconds since the start")
        axis.set_title(textwrap.fill(title, _TITLE_WIDTH), fontsize=10)
        axis.grid(which="both", alpha=0.2)
        axis.legend(fontsize=8, loc="upper left")
    figure.suptitle(
        "Start-up and rounds together (from the medians; dashed: written by hand)"
    )
    _save(figure, path)


def plot_growth(
    curves: Mapping[str, tuple[str, Mapping[str, Mapping[int, Spread]]]],
    path: pathlib.Path,
) -> None:
    """Plots seconds per round by size, with a panel for each kind of size.

    Args:
      curves: By the panel's title: the label of its sizes, and by engine the spread
        over rounds for each size.
      path: PNG file to write.
    """
    figure, axes = _panels_in_a_row(len(curves))
    for axis, (title, (label, by_engine)) in zip(axes, curves.items(), strict=True):
        for name, curve in by_engine.items():
            _plot_curve(axis, name, curve)
        axis.set_xscale("log")
        axis.set_yscale("log")
        _plain_ticks(axis.xaxis)
        _plain_ticks(axis.yaxis)
        axis.set_xlabel(label)
        axis.set_ylabel("seconds per round")
        axis.set_title(textwrap.fill(title, _TITLE_WIDTH), fontsize=10)
        axis.grid(which="both", alpha=0.2)
    axes[0].legend(fontsize=9, loc="upper left")
    figure.suptitle("How a round grows (medians; shaded: minimum to maximum)")
    _save(figure, path)


def _panels_in_a_row(number: int) -> tuple[matplotlib.figure.Figure, Sequence]:
    figure = matplotlib.figure.Figure(figsize=(5.2 * number, 4.4), layout="constrained")
    return figure, figure.subplots(1, number, squeeze=False)[0]


def _plot_curve(axis, name: str, curve: Mapping[int, Spread]) -> None:
    sizes = sorted(curve)
    axis.fill_between(
        sizes,
        [curve[size].low for size in sizes],
        [curve[size].high for size in sizes],
        color=_color(name),
        alpha=0.15,
    )
    axis.plot(
        sizes,
        [curve[size].median for size in sizes],
        marker=_MARKERS.get(name, "o"),
        markersize=5,
        color=_color(name),
        linestyle="--" if name.startswith("bare_") else "-",
        label=_words(name),
    )
