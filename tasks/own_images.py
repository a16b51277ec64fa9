"""Reads a folder of images: `DIR/CLASS/IMAGE`, or `DIR/CLIENT/CLASS/IMAGE`."""

import os
import pathlib
import struct
from collections.abc import Iterable, Sequence
from typing import NoReturn

import numpy as np
import tensorflow as tf

from tasks.task import TaskError
from tff_algos import messages
from tff_algos.paths import is_utf8

# Folders above an image, of clients and classes.
_MAX_DEPTH = 2
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
# White, in images of 16 bits per channel.
MOST_OF_16_BITS = 2**16 - 1
# Of a PNG file's header: its signature, and where it says how many bits a channel has.
_PNG, _PNG_BITS = b"\x89PNG\r\n\x1a\n", 24
# Of a BMP file: its signature, and the positions of the pixels' offset, of the second
# header, which begins with its length and precedes the palette, and of the bits per pixel.
_BMP, _BMP_PIXELS, _BMP_HEADER, _BMP_BITS = b"BM", 10, 14, 28


def read(
    folder: pathlib.Path,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Returns images [n, height, width, channels], classes, and clients or None.

    Images are uint8, or float32 in [0, 1] if they have 16 bits per channel.

    Args:
      folder: A folder for each class, or a folder for each client with one for each of
        its classes. Hidden files are ignored.

    Raises:
      TaskError: If there are no images, or images of several depths, shapes or
        numbers of bits, or a file that is no image, or something cannot be read.
    """
    paths = visible_files(folder)
    others = [path for path in paths if path.suffix.lower() not in SUFFIXES]
    if others:
        raise TaskError(
            f"{others[0]} is not an image this program can read "
            f"({', '.join(SUFFIXES)}): move it out of the folder."
        )
    if not paths:
        raise TaskError(f"{folder} has no images ({', '.join(SUFFIXES)}) below it.")
    _check_names(folder, paths)
    parts = [path.relative_to(folder).parts for path in paths]
    depths = {len(part): path for part, path in zip(parts, paths, strict=True)}
    if len(depths) > 1 or min(depths) not in (2, 3):
        odd = depths[min(depths)] if min(depths) < 2 else depths[max(depths)]
        raise TaskError(
            f"{folder} must have images as CLASS/IMAGE or all as CLIENT/CLASS/IMAGE, "
            f"found {odd.relative_to(folder)}."
        )
    images = _read_images(paths)
    labels = np.array([part[-2] for part in parts])
    clients = np.array([part[0] for part in parts]) if min(depths) == 3 else None
    return images, labels, clients


def _check_names(folder: pathlib.Path, paths: Iterable[pathlib.Path]) -> None:
    """Raises `TaskError` for a name that no file of results could hold."""
    for path in paths:
        name = path.relative_to(folder)
        if not is_utf8(name):
            raise TaskError(
                f"{folder} has {os.fsencode(name).decode(errors='backslashreplace')}: "
                "expected names in UTF-8; rename it."
            )


def visible_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files that are read, in order; links are followed.

    Raises:
      TaskError: If a folder cannot be read or a link leads to nothing.
    """
    found = []
    for at, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        depth = len(pathlib.Path(at).relative_to(folder).parts)
        # No deeper than what is refused, because links may lead back.
        deeper = [] if depth > _MAX_DEPTH else folders
        folders[:] = [name for name in deeper if not name.startswith(".")]
        visible = (name for name in names if not name.startswith("."))
        found += [pathlib.Path(at, name) for name in visible]
    return sorted(filter(_is_file, found))


def _is_file(path: pathlib.Path) -> bool:
    try:
        if not path.exists():
            raise TaskError(f"{path} is a link to nothing: move it out of the folder.")
    except OSError as error:
        _refuse(error)
    return path.is_file()


def _refuse(error: OSError) -> NoReturn:
    """Raises where `os.walk` would leave out a folder."""
    reason = error.strerror or str(error)
    raise TaskError(f"{error.filename} cannot be read: {reason}.") from error


def _read_images(paths: Sequence[pathlib.Path]) -> np.ndarray:
    first = _decoded(paths[0])
    images = np.empty((len(paths), *first.shape), first.dtype)
    for number, path in enumerate(paths):
        image = first if number == 0 else _decoded(path)
        if image.dtype != first.dtype:
            raise TaskError(
                f"{path} has {_bits(image)} bits per channel, but {paths[0]} has "
                f"{_bits(first)}: convert all to one of them."
            )
        if image.shape != first.shape:
            raise TaskError(
                f"{path} is {_size(image)}, but {paths[0]} is {_size(first)}: "
                f"{_remedy(image, first)}."
            )
        images[number] = image
    return images


def _decoded(path: pathlib.Path) -> np.ndarray:
    try:
        content = path.read_bytes()
        if _has_colors_in_a_palette(content):
            raise TaskError(
                f"{path} is a BMP whose colors are in a palette, which TensorFlow "
                "ignores: save it as PNG."
            )
        fine = (
            content.startswith(_PNG) and content[_PNG_BITS : _PNG_BITS + 1] == b"\x10"
        )
        data = tf.io.decode_image(
            content, dtype=tf.uint16 if fine else tf.uint8, expand_animations=False
        )
    except (OSError, tf.errors.OpError) as error:
        reason = messages.one_line(error).rstrip(".")
        raise TaskError(f"{path} cannot be read as an image: {reason}.") from error
    image = data.numpy()
    return image / np.float32(MOST_OF_16_BITS) if fine else image


def _has_colors_in_a_palette(content: bytes) -> bool:
    """Returns whether an image is a BMP whose pixels index a palette, not of grays."""
    if not content.startswith(_BMP) or len(content) < _BMP_BITS + 2:
        return False
    pixels, header = (
        struct.unpack_from("<I", content, at)[0] for at in (_BMP_PIXELS, _BMP_HEADER)
    )
    if struct.unpack_from("<H", content, _BMP_BITS)[0] != 8:
        return False
    # Each color is blue, green, red and an unused byte.
    palette = content[_BMP_HEADER + header : pixels]
    colors = np.frombuffer(palette[: len(palette) // 4 * 4], np.uint8).reshape(-1, 4)
    return bool((colors[:, :3] != np.arange(len(colors))[:, np.newaxis]).any())


def _bits(image: np.ndarray) -> int:
    return 8 if image.dtype == np.uint8 else 16


def _remedy(image: np.ndarray, first: np.ndarray) -> str:
    sizes = [] if image.shape[:2] == first.shape[:2] else ["resize all to one size"]
    same = image.shape[2] == first.shape[2]
    channels = [] if same else ["convert all to RGB or all to grayscale"]
    return " and ".join([*sizes, *channels])


def _size(image: np.ndarray) -> str:
    height, width, channels = image.shape
    unit = "channel" if channels == 1 else "channels"
    return f"{height} x {width} with {channels} {unit}"
