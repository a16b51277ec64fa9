"""Reads Tiny ImageNet as published: JPEG files in folders or in one zip archive.

Below `tiny-imagenet-200/`: `wnids.txt` lists the classes; `train/<class>/images/`
holds `<class>_0.JPEG` and so on; `val/val_annotations.txt` names the images of
`val/images/` and their classes. The images of `test/` have no published labels.
"""

import contextlib
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np
import tensorflow as tf
import tqdm

from tasks import damage
from tasks.array_source import Arrays
from tasks.damage import Unfit
from tasks.task import TaskError
from tff_algos import messages

FOLDER = "tiny-imagenet-200"
IMAGE_SHAPE = (64, 64, 3)

_ReadMember = Callable[[str], bytes]


@attrs.frozen(kw_only=True)
class Layout:
    """The sizes of the dataset.

    Attributes:
      num_classes: Number of lines in `wnids.txt`.
      images_per_class: Training images per class.
      num_test: Validation images, which are the test set.
    """

    num_classes: int = 200
    images_per_class: int = 500
    num_test: int = 10_000


def read(path: str, layout: Layout) -> Arrays:
    """Decodes all images; labels are the classes' positions in `wnids.txt`.

    Grayscale images get three equal channels. The whole dataset takes a minute.

    Args:
      path: The folder `tiny-imagenet-200`, or the zip archive that contains it.
      layout: The expected sizes.

    Returns:
      Arrays of images of `IMAGE_SHAPE`.

    Raises:
      TaskError: If a file is missing or damaged, or the sizes differ from `layout`.
    """
    try:
        with _opened(path) as read_member:
            classes = _read_classes(read_member, layout)
            train = _train_images(classes, layout)
            test = _test_images(read_member, classes, layout)
            x_train, x_test = (
                _decode(read_member, [name for name, _ in images])
                for images in (train, test)
            )
    except Unfit as problem:
        raise TaskError(
            f"{path} is not the whole of {FOLDER}: {problem}; remove it, then --data=tff "
            "downloads it again, or use --data=generated."
        ) from problem
    y_train, y_test = (
        np.array([label for _, label in images], np.int32) for images in (train, test)
    )
    return Arrays(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[_ReadMember]:
    """Yields `name -> content` for files in the folder; the function raises `Unfit`."""
    if os.path.isdir(path):
        yield lambda name: _read_file(path, name)
        return
    with damage.reading():
        archive = zipfile.ZipFile(path)
    with archive:
        yield lambda name: _read_archived(archive, name)


def _read_file(folder: str, name: str) -> bytes:
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        raise Unfit(f"it lacks {messages.shortened(name)}")
    with damage.reading(messages.shortened(name)), open(path, "rb") as file:
        return file.read()


def _read_archived(archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        member = archive.getinfo(f"{FOLDER}/{name}")
    except KeyError as error:
        raise Unfit(f"it lacks {FOLDER}/{messages.shortened(name)}") from error
    with damage.reading(messages.shortened(name)):
        return archive.read(member)


def _read_classes(read_member: _ReadMember, layout: Layout) -> list[str]:
    classes = _read_text(read_member, "wnids.txt").split()
    if len(set(classes)) != len(classes) or len(classes) != layout.num_classes:
        raise Unfit(
            f"wnids.txt lists {len(set(classes))} classes in {len(classes)} lines, "
            f"not {layout.num_classes}"
        )
    return classes


def _read_text(read_member: _ReadMember, name: str) -> str:
    try:
        return read_member(name).decode()
    except UnicodeDecodeError as error:
        raise Unfit(f"{name} is not text") from error


def _train_images(classes: Sequence[str], layout: Layout) -> list[tuple[str, int]]:
    """Returns names and labels."""
    return [
        (f"train/{name}/images/{name}_{number}.JPEG", label)
        for label, name in enumerate(classes)
        for number in range(layout.images_per_class)
    ]


def _test_images(
    read_member: _ReadMember, classes: Sequence[str], layout: Layout
) -> list[tuple[str, int]]:
    """Returns names and labels, in the order of the annotations."""
    annotations = "val/val_annotations.txt"
    labels = {name: label for label, name in enumerate(classes)}
    images = {}
    for line in _read_text(read_member, annotations).splitlines():
        # Name, class, and the four numbers of the bounding box.
        columns = line.split("\t")
        if len(columns) < 2 or columns[1] not in labels:
            raise Unfit(f"{annotations} has a line without a class: {line[:60]!r}")
        images[f"val/images/{columns[0]}"] = labels[columns[1]]
    if len(images) != layout.num_test:
        raise Unfit(f"{annotations} names {len(images)} images, not {layout.num_test}")
    missing = set(classes) - {classes[label] for label in images.values()}
    if missing:
        raise Unfit(f"{annotations} names no image of {min(missing)}")
    return list(images.items())


def _decode(read_member: _ReadMember, names: Sequence[str]) -> np.ndarray:
    """Returns uint8 [len(names), 64, 64, 3]."""
    images = np.empty((len(names), *IMAGE_SHAPE), np.uint8)
    for image, name in zip(images, tqdm.tqdm(names, "Decoding", disable=None)):
        content = read_member(name)
        try:
            decoded = tf.io.decode_jpeg(
                content, channels=3, dct_method="INTEGER_ACCURATE"
            ).numpy()
        except tf.errors.InvalidArgumentError as error:
            raise Unfit(f"{messages.shortened(name)} is not a JPEG image") from error
        if decoded.shape != IMAGE_SHAPE:
            raise Unfit(
                f"{name} has shape {list(decoded.shape)}, not {list(IMAGE_SHAPE)}"
            )
        image[...] = decoded
    return images
