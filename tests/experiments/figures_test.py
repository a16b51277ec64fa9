"""Figures that notebooks show as images, with or without pyplot."""

import io
import warnings

import matplotlib.figure
import numpy as np
import pytest
from PIL import Image

from tff_algos.experiments import figures
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


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.5, 0.8), ["50 %", "55 %", "60 %", "65 %", "70 %", "75 %", "80 %"]),
        ((1.0, 1.0), ["95 %", "96 %", "97 %", "98 %", "99 %", "100 %"]),
        ((0.981, 0.985), [f"98.{n} %" for n in (10, 15, 20, 25, 30, 35, 40, 45, 50)]),
        ((0.0, 1.0), ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]),
    ],
)
def test_shares_are_in_per_cent_with_the_decimals_that_they_need(values, expected):
    figure = Figure(4.0, 3.0)
    axis = figure.subplots()
    axis.plot([0, 1], values)
    figures.show_per_cent(axis.yaxis)
    figure.draw_without_rendering()
    low, high = axis.get_ylim()
    assert -0.05 <= low and high <= 1.05
    shown = zip(axis.get_yticks(), axis.get_yticklabels(), strict=True)
    assert [text.get_text() for y, text in shown if low <= y <= high] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two\nthree", "one two\nthree"),
        ("fedavg client_learning_rate=1", "fedavg\nclient_learning_rate=1"),
        ("fedavg+client_learning_rate=1", "fedavg+\nclient_learning_rate=1"),
        ("a" * 30, f"{'a' * 24}\n{'a' * 6}"),
    ],
)
def test_long_texts_are_wrapped_where_names_have_parts(text, expected):
    assert figures.wrapped(text, 3.0) == expected


@pytest.mark.parametrize("name", ["北京协和医院", "$\\frac$", "a $1 or $2"])
def test_names_in_any_script_are_drawn_without_warnings(name, tmp_path):
    figure = Figure(4.0, 3.0)
    axis = figure.subplots()
    axis.set_xticks([0, 1], [name, "other"])
    axis.set_title(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figures.save(figure, tmp_path / "names.png")
    assert axis.title.get_parse_math() is False
    assert np.ptp(Image.open(tmp_path / "names.png").convert("L")) == 255


def test_logarithmic_axes_keep_their_powers():
    figure = Figure(4.0, 3.0)
    axis = figure.subplots()
    axis.plot([1, 1e6])
    axis.set_yscale("log")
    figure.draw_without_rendering()
    assert all(label.get_parse_math() for label in axis.get_yticklabels())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("phd", "phd"),
        ("two\nlines", "two lines"),
        ("the hospital of the city of Wien", "the hospital of…of Wien"),
        ("the hospital of the city of Bern", "the hospital of…of Bern"),
    ],
)
def test_the_middle_of_long_names_is_left_out(name, expected):
    assert figures.shortened(name) == expected
