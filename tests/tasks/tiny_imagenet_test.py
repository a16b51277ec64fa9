"""The Tiny ImageNet task: downloads, kept images, its model and its stand-in."""

import logging
import pathlib

import numpy as np
import pytest

from tasks import download, tiny_imagenet, tiny_imagenet_file
from tasks.task import TaskError
from tests.testing.tiny_images import LAYOUT, assert_whole, load, make_folder, pack


@pytest.fixture
def small(monkeypatch):
    """Makes the dataset one of a few images."""
    monkeypatch.setattr(tiny_imagenet, "LAYOUT", LAYOUT)


def test_an_archive_is_downloaded_where_that_is_asked_for(small, tmp_path, monkeypatch):
    def obtain(file, cache_dir):
        assert file.url.endswith("stanford.edu/tiny-imagenet-200.zip")
        assert file.name == "tiny-imagenet-200.zip"
        return str(pack(make_folder(pathlib.Path(cache_dir))))

    monkeypatch.setattr(download, "obtain_published", obtain)
    task = load(tmp_path, partition="iid:1")
    assert task.data_source == "generated"
    for wanted in (
        "tiny_imagenet.npz",
        "tiny-imagenet-200.zip",
        "--data=tff downloads",
    ):
        assert wanted in task.notice
    assert_whole(load(tmp_path, "tff", partition="iid:1"))


def test_a_folder_that_cannot_be_written_is_no_error(
    small, tmp_path, monkeypatch, caplog
):
    def refuse(path, arrays):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(tiny_imagenet, "_write_npz", refuse)
    make_folder(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert_whole(load(tmp_path, partition="iid:1"))
    assert "Cannot keep the decoded images" in caplog.text


def test_a_kill_while_images_are_kept_leaves_no_file(small, tmp_path, monkeypatch):
    def interrupted(file, **arrays):
        file.write(b"half")
        raise KeyboardInterrupt

    make_folder(tmp_path)
    monkeypatch.setattr(np, "savez", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-imagenet-200"]


def test_what_a_killed_process_left_is_removed(small, tmp_path):
    make_folder(tmp_path)
    left = tmp_path / "tiny_imagenet.npz.abcd.partial"
    left.write_bytes(b"half")
    load(tmp_path, partition="iid:1")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"tiny-imagenet-200", "tiny_imagenet.npz"}


def test_a_few_classes_are_not_the_data_set(tmp_path):
    assert tiny_imagenet.LAYOUT == tiny_imagenet_file.Layout(
        num_classes=200, images_per_class=500, num_test=10_000
    )
    make_folder(tmp_path)
    with pytest.raises(TaskError, match="lists 3 classes in 3 lines, not 200"):
        load(tmp_path)


@pytest.mark.parametrize("norm", [None, "group", "none"])
def test_the_model_has_the_published_size(norm, tmp_path):
    task = load(tmp_path, "generated", norm=norm)
    trainable, moving = task.model.initial_weights
    num_weights = 280_696 if norm == "none" else 282_072
    assert sum(weight.size for weight in trainable) == num_weights
    assert bool(moving) == (norm is None)


def test_the_stand_in_is_divided_among_a_hundred_clients_unevenly(tmp_path):
    task = load(tmp_path, "generated")
    assert task.notice is None and task.dataset_name == "tiny_imagenet_generated"
    assert len(task.train_client_ids) == len(task.eval_client_ids) == 100
    labels = [task.train_labels(client_id) for client_id in task.train_client_ids]
    assert sum(map(len, labels)) == 4000
    x, y = task.examples("client_042", "train")
    np.testing.assert_array_equal(y, labels[42])
    logits = task.model.predict_on_batch(
        task.model.initial_weights, x[:2], training=False
    )
    assert logits.shape == (2, 200)
    assert len(task.test_examples[1]) == 1000
