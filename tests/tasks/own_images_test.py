"""Folders of images by class, or by client and class."""

import errno
import os
import struct

import numpy as np
import pytest
import tensorflow as tf

from tasks import own_images
from tasks.task import TaskError


@pytest.fixture
def put(tmp_path):
    def put(name, value=7, shape=(4, 3, 1)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image = np.full(shape, value, np.uint8)
        path.write_bytes(tf.io.encode_png(image).numpy())
        return path

    return put


def test_folders_are_classes(put, tmp_path):
    put("dog/1.png", 1)
    put("cat/1.PNG", 2)
    put(".thumbnails/a/1.png", 9)
    images, labels, clients = own_images.read(tmp_path)
    assert images.shape == (2, 4, 3, 1) and images.dtype == np.uint8
    assert list(labels) == ["cat", "dog"] and clients is None
    assert images[:, 0, 0, 0].tolist() == [2, 1]


def test_outer_folders_are_clients(put, tmp_path):
    for client, label in (("ann", "cat"), ("ann", "dog"), ("bob", "cat")):
        put(f"{client}/{label}/1.png")
    _, labels, clients = own_images.read(tmp_path)
    assert list(clients) == ["ann", "ann", "bob"]
    assert list(labels) == ["cat", "dog", "cat"]


def test_images_of_16_bits_keep_them(put, tmp_path):
    first, second = np.array([[[0], [1]], [[256], [65535]]], np.uint16), 2
    put("a/1.png").write_bytes(tf.io.encode_png(first).numpy())
    other = np.full([2, 2, 1], second, np.uint16)
    put("b/1.png").write_bytes(tf.io.encode_png(other).numpy())
    images, _, _ = own_images.read(tmp_path)
    assert images.dtype == np.float32
    np.testing.assert_allclose(images[0], first / 65535.0, rtol=1e-6)
    np.testing.assert_allclose(images[1], other / 65535.0, rtol=1e-6)


def test_images_of_8_and_of_16_bits_are_refused(put, tmp_path):
    put("a/1.png", shape=(2, 2, 1))
    fine = tf.io.encode_png(np.zeros([2, 2, 1], np.uint16)).numpy()
    put("b/1.png").write_bytes(fine)
    with pytest.raises(
        TaskError, match="b/1.png has 16 bits per channel, but .*a/1.png has 8: convert"
    ):
        own_images.read(tmp_path)


@pytest.mark.parametrize("is_gray", [True, False])
def test_bmps_with_a_palette_of_colors_are_refused(is_gray, put, tmp_path):
    palette = np.zeros([256, 4], np.uint8)
    palette[:, :3] = np.arange(256)[:, np.newaxis]
    if not is_gray:
        palette[7] = [255, 0, 0, 0]
    header = struct.pack(
        "<2sIIIIiiHHIIiiII", b"BM", 0, 0, 1078, 40, 4, 1, 1, 8, *[0] * 6
    )
    pixels = bytes([0, 7, 200, 255])
    path = put("a/1.png").with_suffix(".bmp")
    path.with_suffix(".png").rename(path)
    path.write_bytes(header + palette.tobytes() + pixels)
    if is_gray:
        images, _, _ = own_images.read(tmp_path)
        assert images.ravel().tolist() == [0, 7, 200, 255]
    else:
        with pytest.raises(TaskError, match="a/1.bmp is a BMP whose colors .* as PNG"):
            own_images.read(tmp_path)


def test_images_of_different_sizes_are_refused(put, tmp_path):
    put("a/1.png")
    put("b/1.png", shape=(4, 3, 3))
    with pytest.raises(
        TaskError,
        match="4 x 3 with 3 channels, but .* with 1 channel: convert all to RGB or all",
    ):
        own_images.read(tmp_path)
    put("b/1.png", shape=(5, 3, 1))
    with pytest.raises(TaskError, match="with 1 channel: resize all to one size"):
        own_images.read(tmp_path)
    put("b/1.png", shape=(5, 3, 3))
    with pytest.raises(TaskError, match="resize all to one size and convert all to "):
        own_images.read(tmp_path)


def test_links_to_folders_are_followed(put, tmp_path):
    put("data/dog/1.png", 1)
    put("elsewhere/1.png", 2)
    (tmp_path / "data" / "cat").symlink_to(tmp_path / "elsewhere")
    _, labels, _ = own_images.read(tmp_path / "data")
    assert list(labels) == ["cat", "dog"]
    (tmp_path / "data" / "dog" / "back").symlink_to(tmp_path / "data")
    with pytest.raises(TaskError, match="CLASS/IMAGE .* found dog/back/"):
        own_images.read(tmp_path / "data")


def test_other_depths_are_refused(put, tmp_path):
    put("a/1.png")
    put("b/c/1.png")
    with pytest.raises(TaskError, match="CLASS/IMAGE .* found b/c/1.png"):
        own_images.read(tmp_path)


def test_names_that_results_could_not_hold_are_refused(put, tmp_path):
    put("Andr\udce9/1.png")
    with pytest.raises(
        TaskError, match=r"has Andr\\xe9/1\.png: expected names in UTF-8"
    ):
        own_images.read(tmp_path)


def test_what_is_no_image_is_refused(put, tmp_path):
    with pytest.raises(TaskError, match="has no images"):
        own_images.read(tmp_path)
    put("a/1.png").write_bytes(b"no image")
    with pytest.raises(
        TaskError, match=r"1\.png cannot be read as an image: [^\[]*\.$"
    ):
        own_images.read(tmp_path)
    (tmp_path / "a/notes.txt").write_text("x")
    with pytest.raises(
        TaskError,
        match=r"notes\.txt is not an image this program can read \(\.png, \.jpg, "
        r"\.jpeg, \.bmp, \.gif\): move it out of the folder\.$",
    ):
        own_images.read(tmp_path)


def test_what_cannot_be_read_is_refused_and_not_left_out(put, tmp_path, monkeypatch):
    put("cat/1.png")
    link = tmp_path / "cat/2.png"
    link.symlink_to(tmp_path / "gone.png")
    with pytest.raises(TaskError, match=r"cat/2\.png is a link to nothing: move it"):
        own_images.read(tmp_path)
    link.unlink()
    (tmp_path / "dog").mkdir()
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("dog"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(TaskError, match="dog cannot be read: Permission denied"):
        own_images.read(tmp_path)
