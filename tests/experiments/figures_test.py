"""Figures that notebooks show as images, with or without pyplot."""

import io

import matplotlib.figure
from PIL import Image

from tff_algos.experiments.figures import Figure


def test_a_notebook_gets_an_image_of_the_figure():
    figure = Figure(4.0, 2.0)
    figure.subplots().plot([1, 2])
    image = Image.open(io.BytesIO(figure._repr_png_()))
    assert image.format == "PNG" and image.size == (320, 160)
    assert image.convert("L").getextrema()[0] < 100  # Something is drawn.


def test_it_is_one_of_matplotlibs_with_room_for_legends():
    figure = Figure(4.0, 2.0)
    assert isinstance(figure, matplotlib.figure.Figure)
    assert figure.get_layout_engine() is not None
    assert Figure(4.0, 2.0, layout=None).get_layout_engine() is None
