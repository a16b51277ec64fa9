"""Figures of runs and comparisons, without pyplot's state."""

import io
import pathlib
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import Any

import matplotlib.axes
import matplotlib.axis
import matplotlib.figure
import matplotlib.ticker
import numpy as np

from tff_algos.experiments import fonts

_DPI = 80  # Of what a notebook stores; files have more.
_FILE_DPI = 150
_CHARACTERS_PER_INCH = 8.0  # of a title, in matplotlib's default font
_MOST_DECIMALS = 3
# So many clients have names in plots; of more, distributions are shown.
MAX_CLIENTS_NAMED = 10
# Their shapes: where two clients have the same accuracies, both are seen.
MARKERS = "os^DvP<X>*"
_MAX_NAME = 24  # characters
_NAME_INCHES = 0.09  # of a character below an axis
_MARGIN = 0.05  # of an axis of shares, beyond 100 % and 0


class Figure(matplotlib.figure.Figure):
    """A figure that a notebook shows as an image, with names in any script.

    IPython knows matplotlib's own figures only once pyplot has chosen a backend; until
    then a cell shows their repr.
    """

    def __init__(self, width: float, height: float, **options: Any) -> None:
        """Initializes a figure.

        Args:
          width: Inches.
          height: Inches.
          **options: As of `matplotlib.figure.Figure`. The layout is constrained unless
            they say otherwise, so that legends outside of the axes cover nothing.
        """
        options = {"layout": "constrained", **options}
        super().__init__(figsize=(width, height), **options)

    def draw(self, renderer: Any) -> None:
        """Draws it on a renderer of matplotlib."""
        fonts.choose(self)
        with fonts.without_warnings():
            super().draw(renderer)

    def savefig(self, *args: Any, **options: Any) -> None:
        """Saves it, as `matplotlib.figure.Figure.savefig` does."""
        # Beside drawing it, matplotlib measures its texts.
        with fonts.without_warnings():
            super().savefig(*args, **options)

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, format="png", dpi=_DPI)
        return image.getvalue()


def save(figure: matplotlib.figure.Figure, path: pathlib.Path) -> None:
    """Saves a figure with all that is on it, also beyond its edges."""
    figure.savefig(path, dpi=_FILE_DPI, bbox_inches="tight")


def wrapped(text: str, inches: float, size: float = 12.0) -> str:
    """Returns text in lines that fit a width, broken at spaces and behind "+".

    Args:
      text: One or several lines.
      inches: The width.
      size: Of the font, in points.
    """
    most = max(1, int(inches * _CHARACTERS_PER_INCH * 12.0 / size))
    return "\n".join(
        # A vertical tab is a space that no name has.
        textwrap.fill(line.replace("+", "+\v"), most, replace_whitespace=False)
        for line in text.splitlines()
    ).replace("\v", "")


def show_rounds(axis: matplotlib.axes.Axes) -> None:
    """Labels the axis of rounds, which are whole numbers."""
    axis.set_xlabel("round")
    steps = [1, 2, 5, 10]
    locator = matplotlib.ticker.MaxNLocator(8, steps=steps, integer=True, min_n_ticks=1)
    axis.xaxis.set_major_locator(locator)
    axis.grid(alpha=0.3)


def show_per_cent(axis: matplotlib.axis.Axis, most_ticks: int = 9) -> None:
    """Labels a drawn axis of shares like "85 %", within 0 and 100 % and a margin."""
    low, high = axis.get_view_interval()
    low = max(low, -_MARGIN)
    limits = low, min(high, 1 + _MARGIN * (1 - low))
    axis.axes.set(**{f"{axis.axis_name}lim": limits})
    axis.set_major_locator(_ShareLocator(most_ticks, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(_PerCentFormatter())


class _ShareLocator(matplotlib.ticker.MaxNLocator):
    def tick_values(self, vmin: float, vmax: float) -> np.ndarray:
        places = np.asarray(super().tick_values(vmin, vmax))
        return places[(places > -1e-9) & (places < 1 + 1e-9)]


class _PerCentFormatter(matplotlib.ticker.Formatter):
    """Gives all ticks of an axis the same number of decimals, the least that suffices."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return self.format_ticks([x])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        shares = 100 * np.asarray(values, np.float64)
        decimals = 0
        while decimals < _MOST_DECIMALS and not np.allclose(
            shares, shares.round(decimals), rtol=0, atol=1e-6
        ):
            decimals += 1
        # Adding zero removes the sign of a negative one.
        return [f"{share:.{decimals}f} %" for share in shares.round(decimals) + 0.0]


def shortened(name: str, most: int = _MAX_NAME) -> str:
    """Returns a name of at most so many characters, by default for an axis or a legend.

    Names often differ at their ends, so it is the middle that is left out.
    """
    name = " ".join(name.split())
    if len(name) <= most:
        return name
    end = most // 3
    return f"{name[: most - end - 1].rstrip()}…{name[-end:].lstrip()}"


def _columns(name: str) -> int:
    """Returns a name's width in Latin characters; those of East Asia are twice as wide."""
    return sum(1 + (unicodedata.east_asian_width(each) in "WF") for each in name)


def name_ticks(axis: matplotlib.axes.Axes, names: Sequence[str]) -> None:
    """Names the places 0, 1, ... below an axis, slanting where there is little room."""
    room = axis.get_position().width * axis.figure.get_figwidth() / len(names)
    if _NAME_INCHES * max(map(_columns, names)) > room:
        style = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    else:
        style = {}
    axis.set_xticks(range(len(names)), names, **style)
