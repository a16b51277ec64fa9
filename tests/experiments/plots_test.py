"""The picture of a partition."""

import attrs
import numpy as np
import pytest

from tests.testing import tiny_task
from tff_algos.experiments import plots

LABELS = {
    "0": [2, 2, 2, 2, 2, 2, 2, 2],
    "1": [0, 0, 4],
    "2": [],
}


def _task(labels):
    return attrs.evolve(
        tiny_task.make(),
        train_client_ids=tuple(labels),
        train_labels=lambda client_id: np.array(labels[client_id], np.int32),
    )


@pytest.fixture
def figures(monkeypatch):
    """Figures instead of files, by name."""
    found = {}
    monkeypatch.setattr(
        plots, "_save", lambda figure, path: found.update({path.name: figure})
    )
    return found


def test_labels_are_counted_by_client_and_class():
    np.testing.assert_array_equal(
        plots.label_counts(_task(LABELS)),
        [[0, 0, 8, 0, 0], [2, 0, 0, 0, 1], [0, 0, 0, 0, 0]],
    )


def test_no_more_than_a_hundred_clients_are_read():
    labels = {f"{number}": [number % 3] for number in range(130)}
    labels["100"] = None
    assert plots.label_counts(_task(labels)).shape == (100, 3)


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


def test_the_largest_dots_hardly_overlap(figures, tmp_path):
    task = _task({f"{number}": range(10) for number in range(100)})
    plots.draw_all([], [], "title", tmp_path, task=task)
    (axis,) = figures["partition.png"].axes
    corner, neighbor = axis.transData.transform([(0, 0), (1, 1)])
    inches = (neighbor - corner) / axis.figure.dpi
    width = np.sqrt(axis.collections[0].get_sizes()[0]) / 72
    assert inches.min() / 2 < width < 1.5 * inches.max()


def test_a_round_without_a_loss_is_a_gap(figures, tmp_path):
    losses = [1.0, np.nan, 0.5, 0.25]
    rows = [
        {"round": number, "stage": "fedavg", "train/loss": loss}
        for number, loss in enumerate(losses, 1)
    ]
    plots.draw_all(rows, [], "title", tmp_path)
    line = figures["learning_curves.png"].axes[0].lines[0]
    np.testing.assert_array_equal(line.get_ydata(), losses)
    # The first point is no line, hence it must be marked.
    assert line.get_marker() == "o"


def test_a_picture_is_written_where_labels_are_classes(tmp_path):
    assert tiny_task.make().train_labels is None
    plots.draw_all([], [], "title", tmp_path / "none", task=tiny_task.make())
    assert not list((tmp_path / "none").iterdir())
    plots.draw_all([], [], "title", tmp_path / "one", task=_task(LABELS))
    (picture,) = (tmp_path / "one").iterdir()
    assert picture.name == "partition.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
