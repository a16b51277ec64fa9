import logging
import pathlib
import shutil
import zipfile

import numpy as np
import pytest
import tensorflow as tf

import tasks
from tasks import download, tiny_imagenet, tiny_imagenet_file
from tasks.task import DataOptions, TaskError

CLASSES = ("n03", "n01", "n02")
LAYOUT = tiny_imagenet_file.Layout(num_classes=3, images_per_class=4, num_test=6)
GREY = "train/n01/images/n01_2.JPEG"


@pytest.fixture
def small(monkeypatch):
    """Makes the data set one of a few images."""
    monkeypatch.setattr(tiny_imagenet, "LAYOUT", LAYOUT)


def _load(folder, data="auto", **options):
    return tasks.load_task(
        "tiny_imagenet",
        tiny_imagenet.TinyImagenetOptions(**options),
        DataOptions(data=data, cache_dir=str(folder)),
    )


def _colour(name):
    """Returns the one colour of an image."""
    rng = np.random.default_rng(list(name.encode()))
    colour = rng.integers(40, 215, 3, np.uint8)
    return np.repeat(colour[:1], 3) if name == GREY else colour


def _jpeg(name, size=64):
    channels = 1 if name == GREY else 3
    image = np.empty((size, size, channels), np.uint8)
    image[...] = _colour(name)[:channels]
    return tf.io.encode_jpeg(image, quality=100).numpy()


def _test_name(number):
    return f"val/images/val_{number}.JPEG"


def _make_folder(folder, **changes) -> pathlib.Path:
    """Makes the data set; `changes` replaces contents of files, None removes them."""
    names = [
        f"train/{name}/images/{name}_{number}.JPEG"
        for name in CLASSES
        for number in range(4)
    ]
    names += [_test_name(number) for number in range(6)]
    files = {name: _jpeg(name) for name in names}
    files["wnids.txt"] = "\n".join(CLASSES).encode()
    files["val/val_annotations.txt"] = b"".join(
        b"val_%d.JPEG\t%s\t0\t3\t60\t63\n" % (number, CLASSES[number % 3].encode())
        for number in range(6)
    )
    root = folder / "tiny-imagenet-200"
    for name, content in {**files, **changes}.items():
        if content is not None:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return root


def _renamed(name):
    """Returns annotations of the six images, one of which has another name."""
    lines = [b"val_%d.JPEG\t%s\n" % (i, CLASSES[i % 3].encode()) for i in range(6)]
    lines[2] = lines[2].replace(b"val_2.JPEG", name)
    return {"val/val_annotations.txt": b"".join(lines)}


def _pack(root) -> pathlib.Path:
    """Puts the folder into an archive beside it, and removes it."""
    path = root.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in root.rglob("*"):
            archive.write(file, file.relative_to(root.parent))
    shutil.rmtree(root)
    return path


def _assert_whole(task):
    assert task.data_source == "tff" and task.notice is None
    np.testing.assert_array_equal(task.test_examples[1], [0, 1, 2, 0, 1, 2])
    for image, number in zip(task.test_examples[0], range(6), strict=True):
        expected = tiny_imagenet.preprocess(_colour(_test_name(number)))
        # JPEG is lossy: two steps of 255.
        np.testing.assert_allclose(
            image, np.broadcast_to(expected, image.shape), atol=0.04
        )
    (client_id,) = task.train_client_ids
    x, y = task.examples(client_id, "train")
    np.testing.assert_array_equal(y, np.repeat([0, 1, 2], 4))
    assert x.shape == (12, 64, 64, 3)
    np.testing.assert_allclose(
        x[6, 5, 5], tiny_imagenet.preprocess(_colour(GREY)), atol=0.04
    )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("data", ["auto", "tff"])
def test_images_are_decoded_once(data, packed, small, tmp_path):
    root = _make_folder(tmp_path)
    if packed:
        root = _pack(root)
    _assert_whole(_load(tmp_path, data, partition="iid:1"))
    shutil.rmtree(root, ignore_errors=True)
    root.unlink(missing_ok=True)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny_imagenet.npz"]
    _assert_whole(_load(tmp_path, data, partition="iid:1"))


def test_an_archive_is_downloaded_where_that_is_asked_for(small, tmp_path, monkeypatch):
    def obtain(file, cache_dir):
        assert file.url.endswith("stanford.edu/tiny-imagenet-200.zip")
        assert file.name == "tiny-imagenet-200.zip"
        return str(_pack(_make_folder(pathlib.Path(cache_dir))))

    monkeypatch.setattr(download, "obtain_published", obtain)
    task = _load(tmp_path, partition="iid:1")
    assert task.data_source == "generated"
    for wanted in (
        "tiny_imagenet.npz",
        "tiny-imagenet-200.zip",
        "--data=tff downloads",
    ):
        assert wanted in task.notice
    _assert_whole(_load(tmp_path, "tff", partition="iid:1"))


def test_a_folder_that_cannot_be_written_is_no_error(
    small, tmp_path, monkeypatch, caplog
):
    def refuse(path, arrays):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(tiny_imagenet, "_write_npz", refuse)
    _make_folder(tmp_path)
    with caplog.at_level(logging.WARNING):
        _assert_whole(_load(tmp_path, partition="iid:1"))
    assert "Cannot keep the decoded images" in caplog.text


def test_a_kill_while_images_are_kept_leaves_no_file(small, tmp_path, monkeypatch):
    def interrupted(file, **arrays):
        file.write(b"half")
        raise KeyboardInterrupt

    _make_folder(tmp_path)
    monkeypatch.setattr(np, "savez", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _load(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-imagenet-200"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({GREY: None}, f"lacks .*{GREY};"),
        ({GREY: b"no image"}, f"{GREY} is no JPEG image;"),
        ({GREY: _jpeg(GREY, size=32)}, r"shape \[32, 32, 3\], not \[64, 64, 3\];"),
        ({"wnids.txt": None}, "lacks .*wnids.txt;"),
        ({"wnids.txt": b"n01\nn02\n"}, "lists 2 classes in 2 lines, not 3;"),
        ({"wnids.txt": b"n01\nn01\nn02"}, "lists 2 classes in 3 lines, not 3;"),
        ({"wnids.txt": b"\xff\xfe"}, "wnids.txt is no text;"),
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
def test_what_is_wrong_is_said(changes, problem, packed, small, tmp_path):
    path = _make_folder(tmp_path, **changes)
    if packed:
        path = _pack(path)
    with pytest.raises(TaskError, match=problem) as error:
        _load(tmp_path)
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
            path.read_bytes().replace(_jpeg(GREY), bytes(len(_jpeg(GREY))))
        ),
    ],
)
def test_a_corrupt_archive_is_an_error(spoil, small, tmp_path):
    path = _pack(_make_folder(tmp_path))
    spoil(path)
    with pytest.raises(TaskError, match="tiny-imagenet-200.zip .*cannot be read"):
        _load(tmp_path)


def test_a_few_classes_are_not_the_data_set(tmp_path):
    assert tiny_imagenet.LAYOUT == tiny_imagenet_file.Layout(
        num_classes=200, images_per_class=500, num_test=10_000
    )
    _make_folder(tmp_path)
    with pytest.raises(TaskError, match="lists 3 classes in 3 lines, not 200"):
        _load(tmp_path)


@pytest.mark.parametrize("norm", [None, "group", "none"])
def test_the_model_has_the_published_size(norm, tmp_path):
    task = _load(tmp_path, "generated", norm=norm)
    trainable, moving = task.model.initial_weights
    num_weights = 280_696 if norm == "none" else 282_072
    assert sum(weight.size for weight in trainable) == num_weights
    assert bool(moving) == (norm is None)


def test_the_stand_in_is_divided_among_a_hundred_clients_unevenly(tmp_path):
    task = _load(tmp_path, "generated")
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
