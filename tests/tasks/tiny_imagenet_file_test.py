"""Tiny ImageNet's files: images are decoded once, and what is wrong is said."""

import shutil
import zipfile

import pytest

from tasks import tiny_imagenet
from tasks.task import TaskError
from tests.testing.tiny_images import (
    CLASSES,
    GREY,
    LAYOUT,
    assert_whole,
    jpeg,
    load,
    make_folder,
    pack,
)


@pytest.fixture
def small(monkeypatch):
    """Makes the dataset one of a few images."""
    monkeypatch.setattr(tiny_imagenet, "LAYOUT", LAYOUT)


def _renamed(name):
    """Returns annotations of the six images, one of which has another name."""
    lines = [b"val_%d.JPEG\t%s\n" % (i, CLASSES[i % 3].encode()) for i in range(6)]
    lines[2] = lines[2].replace(b"val_2.JPEG", name)
    return {"val/val_annotations.txt": b"".join(lines)}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("data", ["auto", "tff"])
def test_images_are_decoded_once(data, packed, small, tmp_path):
    root = make_folder(tmp_path)
    if packed:
        root = pack(root)
    assert_whole(load(tmp_path, data, partition="iid:1"))
    shutil.rmtree(root, ignore_errors=True)
    root.unlink(missing_ok=True)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny_imagenet.npz"]
    assert_whole(load(tmp_path, data, partition="iid:1"))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({GREY: None}, f"lacks .*{GREY};"),
        ({GREY: b"no image"}, f"{GREY} is not a JPEG image;"),
        ({GREY: jpeg(GREY, size=32)}, r"shape \[32, 32, 3\], not \[64, 64, 3\];"),
        ({"wnids.txt": None}, "lacks .*wnids.txt;"),
        ({"wnids.txt": b"n01\nn02\n"}, "lists 2 classes in 2 lines, not 3;"),
        ({"wnids.txt": b"n01\nn01\nn02"}, "lists 2 classes in 3 lines, not 3;"),
        ({"wnids.txt": b"\xff\xfe"}, "wnids.txt is not text;"),
        (
            {"val/val_annotations.txt": b"val_0.JPEG\tn77\t0"},
            r"a line without a class: 'val_0.JPEG\\tn77",
        ),
        ({"val/val_annotations.txt": b"val_0.JPEG\tn01\n"}, "1 images, not 6;"),
        (_renamed(b"val\x00.JPEG"), r"lacks .*images/val\\x00.JPEG;"),
        (_renamed(b"v" * 999), r"lacks .*images/v{69}\.\.\. \(1010 characters\);"),
        (
            {
                "val/val_annotations.txt": b"".join(
                    b"val_%d.JPEG\tn01\n" % number for number in range(6)
                )
            },
            "names no image of n02;",
        ),
    ],
)
def test_what_is_wrong_with_the_images_is_said(
    changes, problem, packed, small, tmp_path
):
    path = make_folder(tmp_path, **changes)
    if packed:
        path = pack(path)
    with pytest.raises(TaskError, match=problem) as error:
        load(tmp_path)
    assert str(error.value).startswith(
        f"{path} is not the whole of tiny-imagenet-200: "
    )
    assert "\n" not in str(error.value)
    assert not (tmp_path / "tiny_imagenet.npz").exists()


def _spoil_a_member(path):
    """Packs the archive anew by LZMA, and damages an image."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        info = archive.getinfo(f"tiny-imagenet-200/{GREY}")
    content = bytearray(path.read_bytes())
    start = info.header_offset + 30 + len(info.filename) + 12
    content[start : start + 60] = bytes(range(60))
    path.write_bytes(content)


@pytest.mark.parametrize(
    "spoil",
    [
        _spoil_a_member,
        lambda path: path.write_bytes(path.read_bytes()[:-300]),
        lambda path: path.write_bytes(b"<html>no</html>"),
        lambda path: path.write_bytes(
            path.read_bytes().replace(jpeg(GREY), bytes(len(jpeg(GREY))))
        ),
    ],
)
def test_a_corrupt_archive_is_an_error(spoil, small, tmp_path):
    path = pack(make_folder(tmp_path))
    spoil(path)
    with pytest.raises(TaskError, match="tiny-imagenet-200.zip .*cannot be read"):
        load(tmp_path)
