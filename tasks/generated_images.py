"""Generated stand-ins for image data sets: written characters, and coloured shapes.

They are drawn in memory in a second, always the same, and kept for the process.
Digits (for MNIST) and the capitals A to J (for Fashion-MNIST) come from the writers
of `tasks.generated_glyphs`, pooled. Shapes (for CIFAR-10) have an outline that is
their class; colours, background, place, size, angle, texture, noise and clutter say
nothing of it, so that a linear classifier finds little.
"""

import functools

import numpy as np

from tasks import generated_glyphs
from tasks.array_data import Arrays
from tff_algos.simulation.task import Split

NUM_CLASSES = 10

_SPLITS: tuple[Split, ...] = ("train", "test")

# Their labels start at 0; in `tasks.generated_glyphs` the capitals follow the digits.
_FIRST_DIGIT, _FIRST_CAPITAL = 0, generated_glyphs.NUM_DIGITS
_NUM_WRITERS = 100
_GLYPHS_PER_WRITER = {"train": 60, "test": 10}

SHAPE_IMAGE_SIZE = 32
_NUM_SHAPES = {"train": 5000, "test": 1000}
_SHARE_OF_DARK_SHAPES = 0.25
_NUM_STROKES = 3
_NOISE = 0.1
# In pixels: from the middle of the image to that of the shape, along either axis.
_MAX_SHIFT = 4.0
# In pixels: the width of an edge.
_SOFTNESS = 1.2
# Images drawn at once: few enough to stay in the processor's caches.
_CHUNK = 500


@functools.cache
def digits() -> Arrays:
    """Returns 6,000 digits to train on and 1,000 to test, by the same 100 writers.

    Images are uint8 [n, 28, 28, 1] with ink 255 on 0; every digit is as frequent as
    any other in either split.
    """
    return _arrays(*(_draw_glyphs(split, _FIRST_DIGIT) for split in _SPLITS))


@functools.cache
def letters() -> Arrays:
    """Returns 6,000 capitals from A to J to train on and 1,000 to test.

    As `digits`, by the same writers.
    """
    return _arrays(*(_draw_glyphs(split, _FIRST_CAPITAL) for split in _SPLITS))


@functools.cache
def shapes() -> Arrays:
    """Returns 5,000 images of shapes to train on and 1,000 to test.

    Images are uint8 [n, 32, 32, 3]; the classes are disk, ring, square, triangle,
    cross, star, two bars, crescent, four dots and T, every one as frequent as any
    other in either split.
    """
    return _arrays(*(_draw_shapes(split) for split in _SPLITS))


def _arrays(
    train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]
) -> Arrays:
    for array in (*train, *test):
        array.flags.writeable = False
    return Arrays(x_train=train[0], y_train=train[1], x_test=test[0], y_test=test[1])


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(key))


def _balanced_labels(num_examples: int, rng: np.random.Generator) -> np.ndarray:
    """Returns int32 [n] labels in a random order, equally many of each class."""
    return rng.permutation(np.arange(num_examples, dtype=np.int32) % NUM_CLASSES)


def _draw_glyphs(split: Split, first_class: int) -> tuple[np.ndarray, np.ndarray]:
    rng = _rng(first_class, _SPLITS.index(split))
    labels = _balanced_labels(_NUM_WRITERS * _GLYPHS_PER_WRITER[split], rng)
    classes = labels + first_class
    images = np.concatenate(
        [
            generated_glyphs.draw(part, generated_glyphs.writer_style(writer), rng)
            for writer, part in enumerate(np.split(classes, _NUM_WRITERS))
        ]
    )
    # Neighbours must not share a writer: the order says nothing, as in MNIST.
    order = rng.permutation(len(labels))
    ink = np.rint(255.0 * (1.0 - images[order])).astype(np.uint8)
    return ink, labels[order]


def _draw_shapes(split: Split) -> tuple[np.ndarray, np.ndarray]:
    rng = _rng(1, _SPLITS.index(split))
    labels = _balanced_labels(_NUM_SHAPES[split], rng)
    images = [
        _shape_images(part, rng) for part in np.split(labels, len(labels) // _CHUNK)
    ]
    return np.concatenate(images), labels


def _shape_images(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws uint8 [n, 32, 32, 3]: background, clutter, the shape, noise."""
    n = len(labels)
    background, foreground = _contrasting_colours(n, rng)
    images = _textured(background, rng)
    for _ in range(_NUM_STROKES):
        clutter = rng.uniform(0.0, 1.0, (n, 1, 1, 3)).astype(np.float32)
        images = _painted(images, clutter, _stroke_cover(n, rng))
    images = _painted(images, _textured(foreground, rng), _shape_cover(labels, rng))
    images += rng.normal(0.0, _NOISE, images.shape)
    return np.rint(255.0 * np.clip(images, 0.0, 1.0)).astype(np.uint8)


def _contrasting_colours(
    n: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Returns colours of backgrounds and of shapes, float32 [n, 1, 1, 3] each.

    Most shapes are lighter than their background, whatever their class: with as
    many darker ones, training would stand still for long before it sees a pattern.
    """
    lighter = np.where(rng.random((n, 1, 1, 1)) < _SHARE_OF_DARK_SHAPES, -1.0, 1.0)
    shape, background = (
        0.5
        + sign * lighter * rng.uniform(0.1, 0.35, (n, 1, 1, 1))
        + rng.uniform(-0.3, 0.3, (n, 1, 1, 3))
        for sign in (1.0, -1.0)
    )
    return tuple(
        np.clip(colour, 0.0, 1.0).astype(np.float32) for colour in (background, shape)
    )


def _grid() -> tuple[np.ndarray, np.ndarray]:
    """Returns rows and columns from the centre, float32 [1, 32, 32] each."""
    rows, columns = np.mgrid[:SHAPE_IMAGE_SIZE, :SHAPE_IMAGE_SIZE]
    centre = (SHAPE_IMAGE_SIZE - 1) / 2
    return (
        (rows - centre).astype(np.float32)[np.newaxis],
        (columns - centre).astype(np.float32)[np.newaxis],
    )


def _column(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)[:, np.newaxis, np.newaxis]


def _textured(colour: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns float32 [n, 32, 32, 3]: a colour with waves of random direction."""
    n = len(colour)
    rows, columns = _grid()
    angle, phase = rng.uniform(0.0, 2.0 * np.pi, (2, n))
    frequency = rng.uniform(0.1, 1.2, n)
    wave = np.sin(
        _column(frequency * np.cos(angle)) * columns
        + _column(frequency * np.sin(angle)) * rows
        + _column(phase)
    )
    strength = rng.uniform(0.0, 0.12, (n, 1, 1, 3)).astype(np.float32)
    return colour + strength * wave[..., np.newaxis]


def _painted(images: np.ndarray, paint: np.ndarray, cover: np.ndarray) -> np.ndarray:
    """Lays `paint` over images where `cover`, float32 [n, 32, 32] in [0, 1], is 1."""
    return images + cover[..., np.newaxis] * (paint - images)


def _cover(distance: np.ndarray) -> np.ndarray:
    """Returns 1 inside of a shape, 0 outside: [n, 32, 32] from pixels inside of it."""
    return np.clip(0.5 + distance / _SOFTNESS, 0.0, 1.0)


def _stroke_cover(n: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the cover of one straight stroke per image, anywhere."""
    rows, columns = _grid()
    angle = rng.uniform(0.0, np.pi, n)
    half_length = _column(rng.uniform(2.0, 7.0, n))
    half_width = _column(rng.uniform(0.4, 1.2, n))
    x = columns - _column(rng.uniform(-14.0, 14.0, n))
    y = rows - _column(rng.uniform(-14.0, 14.0, n))
    cos, sin = _column(np.cos(angle)), _column(np.sin(angle))
    along, aside = x * cos + y * sin, y * cos - x * sin
    return _cover(_box(along, aside, half_length, half_width))


def _shape_cover(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns the cover of one shape of the given class per image."""
    n = len(labels)
    rows, columns = _grid()
    radius = _column(rng.uniform(7.0, 12.0, n))
    angle = rng.uniform(-0.7, 0.7, n)
    cos, sin = _column(np.cos(angle)), _column(np.sin(angle))
    x = columns - _column(rng.uniform(-_MAX_SHIFT, _MAX_SHIFT, n))
    y = rows - _column(rng.uniform(-_MAX_SHIFT, _MAX_SHIFT, n))
    u, v = (x * cos + y * sin) / radius, (y * cos - x * sin) / radius
    distance = np.empty_like(u)
    for label, outline in enumerate(_OUTLINES):
        chosen = labels == label
        distance[chosen] = outline(u[chosen], v[chosen])
    return _cover(distance * radius)


# The outlines: how far inside of the shape (u, v) lies, in units of its radius;
# negative outside. u points right, v points down.


def _box(u, v, half_width, half_height):
    return np.minimum(half_width - np.abs(u), half_height - np.abs(v))


def _disk(u, v, radius=1.0):
    return radius - np.hypot(u, v)


def _triangle(u, v):
    sides = (v, np.sqrt(0.75) * u - 0.5 * v, -np.sqrt(0.75) * u - 0.5 * v)
    return 0.5 - functools.reduce(np.maximum, sides)


def _cross(u, v):
    return np.maximum(_box(u, v, 0.95, 0.28), _box(u, v, 0.28, 0.95))


def _star(u, v):
    points = np.cos(5.0 * np.arctan2(u, -v))
    return 0.62 + 0.38 * points - np.hypot(u, v)


def _crescent(u, v):
    return np.minimum(_disk(u, v), -_disk(u - 0.5, v, 0.8))


def _dots(u, v):
    return _disk(np.abs(u) - 0.6, np.abs(v) - 0.6, 0.38)


def _tee(u, v):
    return np.maximum(_box(u, v + 0.65, 0.9, 0.28), _box(u, v, 0.28, 0.9))


_OUTLINES = (
    _disk,
    lambda u, v: 0.22 - np.abs(np.hypot(u, v) - 0.75),
    lambda u, v: _box(u, v, 0.8, 0.8),
    _triangle,
    _cross,
    _star,
    lambda u, v: _box(u, np.abs(v) - 0.5, 0.9, 0.24),
    _crescent,
    _dots,
    _tee,
)
