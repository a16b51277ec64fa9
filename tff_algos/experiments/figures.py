"""Figures that notebooks show, without pyplot's state."""

import io
from typing import Any

import matplotlib.figure

_DPI = 80  # Of what a notebook stores; files have more.


class Figure(matplotlib.figure.Figure):
    """A figure that a notebook shows as an image.

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

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, format="png", dpi=_DPI)
        return image.getvalue()
