"""Generated stand-ins for image datasets: handwritten characters and colored shapes.

They are drawn in memory in a few seconds, deterministically, and cached in the process.
Digits (for MNIST) and the capitals A to J (for Fashion-MNIST) come from the pooled
writers of `tasks.generated_glyphs`. The class of a shape (for CIFAR-10) is its outline;
colors, background, position, size, angle, texture, noise and clutter are independent of
it, so a linear classifier learns little. The class of a tinted shape (for CIFAR-100 and
Tiny ImageNet) is its outline and tint: whether it is lighter or darker than its
background, and its hue.
"""

import functools

import attrs
import numpy as np

from tasks import generated_glyphs
from tasks.array_source import Arrays
from tasks.task import Split

NUM_CLASSES = 10

_SPLITS: tuple[Split, ...] = ("train", "test")

# Labels start at 0 here; in `tasks.generated_glyphs` the capitals follow the digits.
_FIRST_DIGIT, _FIRST_CAPITAL = 0, generated_glyphs.NUM_DIGITS
_NUM_WRITERS = 100
_GLYPHS_PER_WRITER = {"train": 60, "test": 10}

SHAPE_IMAGE_SIZE = 32
_NUM_SHAPES = {"train": 5000, "test": 1000}
_SHARE_OF_DARK_SHAPES = 0.25
_NUM_STROKES = 3
_NOISE = 0.1
# In pixels: distance of the shape's center from the image's, along either axis.
_MAX_SHIFT = 4.0
# In pixels: the width of an edge.
_SOFTNESS = 1.2
# Images drawn at once: few enough to stay in the processor's caches.
_CHUNK = 500

# Ranges for tinted shapes: the difference in lightness between a shape and its
# background, and the distance of a hue from gray.
_CONTRAST = (0.15, 0.3)
_CHROMA = (0.2, 0.35)
_BACKGROUND_CHROMA = 0.08


@attrs.frozen(kw_only=True)
class _TintedShapes:
    """A dataset of tinted shapes, lighter and darker ones of every hue.

    Attributes:
      num_hues: Number of hues for every outline and lightness.
      scale: The side of a drawn pixel, in pixels of the image.
      num_images: Images per split; a multiple of the number of classes.
    """

    num_hues: int
    scale: int
    num_images: dict[Split, int]

    @property
    def num_classes(self) -> int:
        """The number of labels, which are ordered by outline, lightness, and hue."""
        return len(_OUTLINES) * 2 * self.num_hues


_TINTED_SHAPES = _TintedShapes(
    num_hues=5, scale=1, num_images={"train": 5000, "test": 1000}
)
_LARGE_TINTED_SHAPES = _TintedShapes(
    num_hues=10, scale=2, num_images={"train": 4000, "test": 1000}
)


@functools.cache
def digits() -> Arrays:
    """Returns 6,000 digits to train on and 1,000 to test, by the same 100 writers.

    Images are uint8 [n, 28, 28, 1] with ink 255 on 0; all digits are equally frequent
    in each split.
    """
    return _arrays(*(_draw_glyphs(split, _FIRST_DIGIT) for split in _SPLITS))


@functools.cache
def letters() -> Arrays:
    """Returns 6,000 capitals from A to J to train on and 1,000 to test.

    Like `digits`, by the same writers.
    """
    return _arrays(*(_draw_glyphs(split, _FIRST_CAPITAL) for split in _SPLITS))


@functools.cache
def shapes() -> Arrays:
    """Returns 5,000 images of shapes to train on and 1,000 to test.

    Images are uint8 [n, 32, 32, 3]; the classes are disk, ring, square, triangle,
    cross, star, two bars, crescent, four dots and T, equally frequent in each split.
    """
    return _arrays(*(_draw_shapes(split) for split in _SPLITS))


@functools.cache
def tinted_shapes() -> Arrays:
    """Returns 5,000 images of 100 classes to train on and 1,000 to test.

    Images are uint8 [n, 32, 32, 3]; the classes are 20 groups of 5 hues: group
    `label // 5` is one of the outlines of `shapes`, darker or lighter than the
    background. All classes are equally frequent in each split.
    """
    return _arrays(*(_draw_tinted(_TINTED_SHAPES, split) for split in _SPLITS))


@functools.cache
def large_tinted_shapes() -> Arrays:
    """Returns 4,000 images of 200 classes to train on and 1,000 to test.

    Like `tinted_shapes`, with 10 hues; images are uint8 [n, 64, 64, 3]. Their edges are
    as coarse as those of the smaller images; their noise has full resolution.
    """
    return _arrays(*(_draw_tinted(_LARGE_TINTED_SHAPES, split) for split in _SPLITS))


def _arrays(
    train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]
) -> Arrays:
    for array in (*train, *test):
        array.flags.writeable = False
    return Arrays(x_train=train[0], y_train=train[1], x_test=test[0], y_test=test[1])


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(key))


def _balanced_labels(
    num_examples: int, rng: np.random.Generator, num_classes: int = NUM_CLASSES
) -> np.ndarray:
    """Returns int32 [n] labels in random order, with equal numbers of each class."""
    return rng.permutation(np.arange(num_examples, dtype=np.int32) % num_classes)


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
    # Shuffle, so that as in MNIST the order does not identify writers.
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
    background, foreground = _contrasting_colors(len(labels), rng)
    images = _scene(labels, background, foreground, rng)
    images += rng.normal(0.0, _NOISE, images.shape)
    return _as_pixels(images)


def _draw_tinted(kind: _TintedShapes, split: Split) -> tuple[np.ndarray, np.ndarray]:
    rng = _rng(2, kind.num_classes, _SPLITS.index(split))
    labels = _balanced_labels(kind.num_images[split], rng, kind.num_classes)
    images = [
        _tinted_images(kind, part, rng)
        for part in np.split(labels, len(labels) // _CHUNK)
    ]
    return np.concatenate(images), labels


def _tinted_images(
    kind: _TintedShapes, labels: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Draws uint8 [n, size, size, 3] like `_shape_images`, tinted by class."""
    groups, hues = np.divmod(labels, kind.num_hues)
    outlines, lighter = np.divmod(groups, 2)
    background, foreground = _tints(lighter, hues / kind.num_hues, rng)
    images = _scene(outlines, background, foreground, rng)
    images = images.repeat(kind.scale, axis=1).repeat(kind.scale, axis=2)
    images += np.float32(_NOISE) * rng.standard_normal(images.shape, np.float32)
    return _as_pixels(images)


def _scene(
    outlines: np.ndarray,
    background: np.ndarray,
    foreground: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draws float [n, 32, 32, 3]: background, clutter and the shape, without noise."""
    n = len(outlines)
    images = _textured(background, rng)
    for _ in range(_NUM_STROKES):
        clutter = rng.uniform(0.0, 1.0, (n, 1, 1, 3)).astype(np.float32)
        images = _painted(images, clutter, _stroke_cover(n, rng))
    return _painted(images, _textured(foreground, rng), _shape_cover(outlines, rng))


def _as_pixels(images: np.ndarray) -> np.ndarray:
    return np.rint(255.0 * np.clip(images, 0.0, 1.0)).astype(np.uint8)


def _tints(
    lighter: np.ndarray, turns: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Returns colors of backgrounds and of shapes, float32 [n, 1, 1, 3] each.

    Args:
      lighter: int [n], 1 if the shape is lighter than the background, else 0.
      turns: float [n], the shape's hue in turns of the color wheel.
      rng: Draws everything else: both lightnesses and the background's hue.
    """
    n = len(lighter)
    middle = rng.uniform(0.45, 0.55, n)
    distance = np.where(lighter, 1.0, -1.0) * rng.uniform(*_CONTRAST, n)
    shape = _color(middle + distance, rng.uniform(*_CHROMA, n), turns)
    background = _color(
        middle - distance, rng.uniform(0.0, _BACKGROUND_CHROMA, n), rng.random(n)
    )
    return background, shape


def _color(gray: np.ndarray, chroma: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Returns float32 [n, 1, 1, 3]: gray, shifted toward a hue with the same mean."""
    phases = 2.0 * np.pi * (turns[:, np.newaxis] - np.arange(3) / 3.0)
    color = gray[:, np.newaxis] + chroma[:, np.newaxis] * np.cos(phases)
    clipped = np.clip(color, 0.0, 1.0).astype(np.float32)
    return clipped[:, np.newaxis, np.newaxis]


def _contrasting_colors(
    n: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Returns colors of backgrounds and of shapes, float32 [n, 1, 1, 3] each.

    Most shapes of every class are lighter than their background: with equally many
    darker ones, training would make no progress for a long time.
    """
    lighter = np.where(rng.random((n, 1, 1, 1)) < _SHARE_OF_DARK_SHAPES, -1.0, 1.0)
    shape, background = (
        0.5
        + sign * lighter * rng.uniform(0.1, 0.35, (n, 1, 1, 1))
        + rng.uniform(-0.3, 0.3, (n, 1, 1, 3))
        for sign in (1.0, -1.0)
    )
    return tuple(
        np.clip(color, 0.0, 1.0).astype(np.float32) for color in (background, shape)
    )


def _grid() -> tuple[np.ndarray, np.ndarray]:
    """Returns rows and columns from the center, float32 [1, 32, 32] each."""
    rows, columns = np.mgrid[:SHAPE_IMAGE_SIZE, :SHAPE_IMAGE_SIZE]
    center = (SHAPE_IMAGE_SIZE - 1) / 2
    return (
        (rows - center).astype(np.float32)[np.newaxis],
        (columns - center).astype(np.float32)[np.newaxis],
    )


def _column(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)[:, np.newaxis, np.newaxis]


def _textured(color: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns float32 [n, 32, 32, 3]: a color with waves of random direction."""
    n = len(color)
    rows, columns = _grid()
    angle, phase = rng.uniform(0.0, 2.0 * np.pi, (2, n))
    frequency = rng.uniform(0.1, 1.2, n)
    wave = np.sin(
        _column(frequency * np.cos(angle)) * columns
        + _column(frequency * np.sin(angle)) * rows
        + _column(phase)
    )
    strength = rng.uniform(0.0, 0.12, (n, 1, 1, 3)).astype(np.float32)
    return color + strength * wave[..., np.newaxis]


def _painted(images: np.ndarray, paint: np.ndarray, cover: np.ndarray) -> np.ndarray:
    """Lays `paint` over images where `cover`, float32 [n, 32, 32] in [0, 1], is 1."""
    return images + cover[..., np.newaxis] * (paint - images)


def _cover(distance: np.ndarray) -> np.ndarray:
    """Returns a mask, 1 inside and 0 outside, from signed distances [n, 32, 32]."""
    return np.clip(0.5 + distance / _SOFTNESS, 0.0, 1.0)


def _stroke_cover(n: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the mask of one straight stroke per image, at a random position."""
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
    """Returns the mask of one shape of the given class per image."""
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


# The outlines: signed distances of (u, v) in units of the radius, positive inside.
# u points right, v points down.


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
