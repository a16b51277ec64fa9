"""The plot of a partition: its dots, and the names of clients and classes."""

import attrs
import numpy as np
import pytest
from matplotlib.backends import backend_agg

from tests.testing import tiny_task
from tff_algos.experiments import partition_plot, plots

LABELS = {
    "0": [2, 2, 2, 2, 2, 2, 2, 2],
    "1": [0, 0, 4],
    "2": [],
}


def _task(labels, classes=None):
    return attrs.evolve(
        tiny_task.make(),
        encoding=classes and {"classes": classes},
        train_client_ids=tuple(labels),
        train_labels=lambda client_id: np.array(labels[client_id], np.int32),
    )


def test_labels_are_counted_by_client_and_class():
    np.testing.assert_array_equal(
        partition_plot.label_counts(_task(LABELS)),
        [[0, 0, 8, 0, 0], [2, 0, 0, 0, 1], [0, 0, 0, 0, 0]],
    )


def test_no_more_than_a_hundred_clients_are_read():
    labels = {f"{number}": [number % 3] for number in range(130)}
    labels["100"] = None
    assert partition_plot.label_counts(_task(labels)).shape == (100, 3)


def test_areas_of_dots_are_numbers_of_examples(figures, tmp_path):
    plots.draw_all([], [], "FedAvg on toy", tmp_path, task=_task(LABELS))
    (axis,) = figures.pop("partition.png").axes
    (dots,) = axis.collections
    np.testing.assert_array_equal(dots.get_offsets(), [[0, 2], [1, 0], [1, 4]])
    areas = dots.get_sizes()
    np.testing.assert_allclose(areas / areas[0], [1, 2 / 8, 1 / 8])
    assert axis.get_title() == "FedAvg on toy\narea: training examples, 8 at most"
    assert axis.get_xlabel() == "training client" and axis.get_ylabel() == "class"
    assert not figures


def test_it_says_that_there_are_more_clients(figures, tmp_path):
    task = _task({f"{number}": [0] for number in range(130)})
    plots.draw_all([], [], "title", tmp_path, task=task)
    (axis,) = figures["partition.png"].axes
    assert axis.get_xlabel() == "training client, the first 100 of 130"


@pytest.mark.parametrize(
    ("num_clients", "num_classes"), [(4, 2), (10, 30), (20, 3), (100, 10)]
)
def test_dots_overlap_neither_each_other_nor_the_frame(
    figures, tmp_path, num_clients, num_classes
):
    task = _task({f"{number}": range(num_classes) for number in range(num_clients)})
    plots.draw_all([], [], "title", tmp_path, task=task)
    (axis,) = figures["partition.png"].axes
    corner, neighbor = axis.transData.transform([(0, 0), (1, 1)])
    width = np.sqrt(axis.collections[0].get_sizes()[0]) / 72 * axis.figure.dpi
    assert min(neighbor - corner) / 2 < width < min(neighbor - corner)
    assert min(corner - axis.bbox.min) > width / 2


def test_a_picture_is_written_where_labels_are_classes(tmp_path):
    assert tiny_task.make().train_labels is None
    plots.draw_all([], [], "title", tmp_path / "none", task=tiny_task.make())
    assert not list((tmp_path / "none").iterdir())
    plots.draw_all([], [], "title", tmp_path / "one", task=_task(LABELS))
    (picture,) = (tmp_path / "one").iterdir()
    assert picture.name == "partition.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_clients_and_classes_of_a_small_partition_have_names(figures, tmp_path):
    task = _task(
        {"phd": [0, 1], "Hôpital Saint-Louis, Paris": [1]}, ["no", "yes", "never"]
    )
    plots.draw_all([], [], "title", tmp_path, task=task)
    (axis,) = figures["partition.png"].axes
    assert [text.get_text() for text in axis.get_xticklabels()] == [
        "phd",
        "Hôpital Saint-L…s, Paris",
    ]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["no", "yes"]


@pytest.mark.parametrize("number", [2, 4, 10])
def test_names_below_an_axis_do_not_touch(figures, tmp_path, number):
    task = _task({f"Universitätsklinikum {n}": [0, 1] for n in range(number)})
    plots.draw_all([], [], "title", tmp_path, task=task)
    (axis,) = figures["partition.png"].axes
    backend_agg.FigureCanvasAgg(axis.figure).draw()
    labels = axis.get_xticklabels()
    places = [label.get_window_extent().x1 for label in labels]
    # At 45 degrees, lines of text are nearer than their ends.
    room = min(np.diff(places)) * np.sin(np.radians(labels[0].get_rotation()))
    assert labels[0].get_rotation() == 45
    assert room > labels[0].get_fontsize() / 72 * axis.figure.dpi


@pytest.mark.parametrize(
    ("name", "rotation"),
    [("hospital", 0), ("北京协和医院一二", 45), ("hospital of Bern", 45)],
)
def test_names_slant_where_they_are_too_wide(figures, tmp_path, name, rotation):
    task = _task({f"{name}{n}": [0] for n in range(2)})
    plots.draw_all([], [], "title", tmp_path, task=task)
    (axis,) = figures["partition.png"].axes
    assert [text.get_rotation() for text in axis.get_xticklabels()] == [rotation] * 2
