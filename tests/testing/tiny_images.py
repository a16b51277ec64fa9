"""A Tiny ImageNet of a few images of one color each, in a folder or packed."""

import pathlib
import shutil
import zipfile

import numpy as np
import tensorflow as tf

import tasks
from tasks import tiny_imagenet, tiny_imagenet_file
from tasks.task import DataOptions

CLASSES = ("n03", "n01", "n02")
LAYOUT = tiny_imagenet_file.Layout(num_classes=3, images_per_class=4, num_test=6)
GREY = "train/n01/images/n01_2.JPEG"


def load(folder, data="auto", **options):
    return tasks.load_task(
        "tiny_imagenet",
        tiny_imagenet.TinyImagenetOptions(**options),
        DataOptions(data=data, cache_dir=str(folder)),
    )


def color(name):
    """Returns the one color of an image."""
    rng = np.random.default_rng(list(name.encode()))
    color = rng.integers(40, 215, 3, np.uint8)
    return np.repeat(color[:1], 3) if name == GREY else color


def jpeg(name, size=64):
    channels = 1 if name == GREY else 3
    image = np.empty((size, size, channels), np.uint8)
    image[...] = color(name)[:channels]
    return tf.io.encode_jpeg(image, quality=100).numpy()


def name_of_test_image(number):
    return f"val/images/val_{number}.JPEG"


def make_folder(folder, **changes) -> pathlib.Path:
    """Makes the dataset; `changes` replaces contents of files, None removes them."""
    names = [
        f"train/{name}/images/{name}_{number}.JPEG"
        for name in CLASSES
        for number in range(4)
    ]
    names += [name_of_test_image(number) for number in range(6)]
    files = {name: jpeg(name) for name in names}
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


def pack(root) -> pathlib.Path:
    """Puts the folder into an archive beside it, and removes it."""
    path = root.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in root.rglob("*"):
            archive.write(file, file.relative_to(root.parent))
    shutil.rmtree(root)
    return path


def assert_whole(task):
    assert task.data_source == "tff" and task.notice is None
    np.testing.assert_array_equal(task.test_examples[1], [0, 1, 2, 0, 1, 2])
    for image, number in zip(task.test_examples[0], range(6), strict=True):
        expected = tiny_imagenet.preprocess(color(name_of_test_image(number)))
        # JPEG is lossy: two steps of 255.
        np.testing.assert_allclose(
            image, np.broadcast_to(expected, image.shape), atol=0.04
        )
    (client_id,) = task.train_client_ids
    x, y = task.examples(client_id, "train")
    np.testing.assert_array_equal(y, np.repeat([0, 1, 2], 4))
    assert x.shape == (12, 64, 64, 3)
    np.testing.assert_allclose(
        x[6, 5, 5], tiny_imagenet.preprocess(color(GREY)), atol=0.04
    )
