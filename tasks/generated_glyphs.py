"""A generated stand-in for federated EMNIST: glyphs drawn by made-up writers.

Every writer has a style (base font, slant, rotation, pen, ink, warp, class mix) and
habits (some glyphs mirrored, crossed, or replaced by a look-alike). A global model
reads most glyphs of a writer that it has not seen; the habits it can learn only from
the writer's own examples.
Nothing is stored: a writer's examples are drawn on demand from matplotlib's fonts,
determined by (seed, writer, split).
"""

import functools
from collections.abc import Sequence

import attrs
import numpy as np

from tasks import glyph_rasters
from tasks.glyph_rasters import CLASSES
from tasks.task import Split
from tff_algos.clients.batching import Examples

NUM_DIGITS = 10
IMAGE_SIZE = 28
DEFAULT_NUM_WRITERS = 340

# Glyphs that a writer may draw in place of a class.
_LOOK_ALIKES = {
    "0": "OQ", "1": "Il7", "2": "Zz", "3": "Ez", "4": "y9", "5": "Ss", "6": "bG",
    "7": "1T", "8": "B3", "9": "gq", "A": "R4", "B": "8D", "C": "GL", "D": "O0",
    "E": "F3", "F": "PE", "G": "6C", "H": "NM", "I": "1l", "J": "Ij", "K": "XH",
    "L": "lI", "M": "Nm", "N": "Mn", "O": "0D", "P": "FR", "Q": "O0", "R": "KA",
    "S": "5Z", "T": "7Y", "U": "Vu", "V": "Uv", "W": "Mw", "X": "Kx", "Y": "VT",
    "Z": "2z", "a": "oA", "b": "6h", "c": "eC", "d": "ao", "e": "cE", "f": "tF",
    "g": "9q", "h": "nb", "i": "jl", "j": "iJ", "k": "hK", "l": "1I", "m": "nM",
    "n": "rm", "o": "aO", "p": "qP", "q": "9g", "r": "nv", "s": "5S", "t": "fT",
    "u": "vU", "v": "uV", "w": "uW", "x": "kX", "y": "gv", "z": "2Z",
}  # fmt: skip

_TALL_LOWERCASE = frozenset("bdfghjklpqty")


@attrs.frozen(kw_only=True)
class WriterStyle:
    """The style of one writer.

    Angles are in radians, lengths in image pixels unless noted otherwise.

    Attributes:
      fonts: [62] index of the font of each class (for most, the writer's base font).
      shapes: [62] the class whose glyph is drawn for each class.
      flips: [62, 2] whether a glyph is mirrored (left-right, upside down).
      turns: [62] quarter turns of each glyph.
      strokes: [62, 3] an added straight stroke: angle, offset from the center and half
        length (0 for none), both as fractions of the glyph.
      slant: Shear, horizontal pixels per vertical pixel.
      rotation: Rotation of every glyph.
      aspect: Width over height, relative to the font's.
      height: Height of a capital.
      lowercase: Height of small letters relative to capitals.
      pen: Added half width of the strokes, in raster pixels.
      softness: Width of the edge of a stroke.
      ink: Darkness of the ink in (0, 1].
      noise: Relative standard deviation of the ink, pixel by pixel.
      shakiness: Scale of the differences between two drawings of one glyph.
      warp: [2, 4] coefficients of the smooth distortion of every glyph.
      class_weights: [62] unnormalized frequencies of the classes.
      activity: Number of examples relative to the average writer.
    """

    fonts: np.ndarray
    shapes: np.ndarray
    flips: np.ndarray
    turns: np.ndarray
    strokes: np.ndarray
    slant: float
    rotation: float
    aspect: float
    height: float
    lowercase: float
    pen: float
    softness: float
    ink: float
    noise: float
    shakiness: float
    warp: np.ndarray
    class_weights: np.ndarray
    activity: float


def client_ids(num_writers: int = DEFAULT_NUM_WRITERS) -> Sequence[str]:
    """Returns the ids of the writers, in a fixed order."""
    return tuple(f"writer_{writer:04d}" for writer in range(num_writers))


def examples(
    writer: int, split: Split, *, only_digits: bool = False, seed: int = 0
) -> Examples:
    """Draws the examples of one writer and split.

    Args:
      writer: The writer's index.
      split: "train" (nine tenths) or "test" (at least one example).
      only_digits: Whether to draw only the 10 digits, not all 62 classes.
      seed: Another seed gives another population of writers.

    Returns:
      `(x, y)`: float32 [n, 28, 28, 1] in [0, 1], background 1.0; int32 [n], TFF's
      EMNIST labels (digits, capitals, small letters).
    """
    style = writer_style(writer, seed)
    num_classes = NUM_DIGITS if only_digits else len(CLASSES)
    total = int(np.clip((100 if only_digits else 200) * style.activity, 20, 400))
    num_test = max(1, round(total / 10))
    num_examples = num_test if split == "test" else total - num_test
    rng = _rng(seed, writer, 1 if split == "train" else 2)
    weights = style.class_weights[:num_classes]
    labels = rng.choice(num_classes, num_examples, p=weights / weights.sum())
    return draw(labels, style, rng), labels.astype(np.int32)


@functools.lru_cache(maxsize=1024)
def writer_style(writer: int, seed: int = 0) -> WriterStyle:
    """Returns the style of a writer, determined by the arguments."""
    rng = _rng(seed, writer, 0)
    num_classes = len(CLASSES)
    font = rng.integers(glyph_rasters.NUM_FONTS)
    # At most one habit per class; habits affect about an eighth of the classes.
    habit = rng.choice(
        7, num_classes, p=(0.88, 0.024, 0.018, 0.018, 0.018, 0.018, 0.024)
    )
    other_fonts = rng.integers(glyph_rasters.NUM_FONTS, size=num_classes)
    borrowed = np.array(
        [CLASSES.index(rng.choice(list(_LOOK_ALIKES[name]))) for name in CLASSES]
    )
    strokes = np.stack(
        [
            rng.uniform(0, np.pi, num_classes),
            rng.uniform(-0.25, 0.25, num_classes),
            np.where(habit == 5, rng.uniform(0.3, 0.6, num_classes), 0.0),
        ],
        axis=-1,
    )
    class_weights = rng.gamma(np.where(np.arange(num_classes) < NUM_DIGITS, 2.4, 1.2))
    return WriterStyle(
        fonts=np.where(habit == 4, other_fonts, font),
        shapes=np.where(habit == 6, borrowed, np.arange(num_classes)),
        flips=np.stack([habit == 1, habit == 2], axis=-1),
        turns=np.where(habit == 3, rng.choice((1, 3), num_classes), 0),
        strokes=strokes,
        slant=float(np.clip(rng.normal(0.0, 0.1), -0.25, 0.25)),
        rotation=float(rng.normal(0.0, 0.05)),
        aspect=float(np.exp(np.clip(rng.normal(0.0, 0.1), -0.2, 0.15))),
        height=rng.uniform(16.0, 21.0),
        lowercase=rng.uniform(0.5, 0.85),
        pen=rng.uniform(-0.5, 1.5),
        softness=rng.uniform(1.0, 2.2),
        ink=rng.uniform(0.75, 1.0),
        noise=rng.uniform(0.0, 0.15),
        shakiness=rng.uniform(0.4, 0.96),
        warp=rng.normal(0.0, 0.4, (2, 4)),
        class_weights=class_weights + 1e-3,
        activity=float(rng.lognormal(-0.1, 0.45)),
    )


def draw(
    labels: np.ndarray, style: WriterStyle, rng: np.random.Generator
) -> np.ndarray:
    """Draws one image per label in a writer's style.

    Args:
      labels: int [n], classes in [0, 62).
      style: The writer's style.
      rng: Draws the differences between drawings.

    Returns:
      float32 [n, 28, 28, 1] in [0, 1], background 1.0.
    """
    classes, glyph_of_label = np.unique(labels, return_inverse=True)
    glyphs = np.stack([_writer_glyph(style, index) for index in classes])
    columns, rows = _raster_positions(labels, style, rng)
    distances = _interpolate(glyphs, glyph_of_label, rows, columns)
    num_examples = len(labels)
    pen = style.pen + rng.normal(0.0, 0.25 * style.shakiness, num_examples)
    pixels_per_raster = style.height / glyph_rasters.EXTENT
    edge = (distances + pen[:, None]) * pixels_per_raster / style.softness
    ink = np.clip(0.5 + edge, 0.0, 1.0) * style.ink
    # The ink is uneven, the paper is clean: EMNIST's background is exactly 1.
    ink *= 1.0 + style.noise * rng.standard_normal(ink.shape, dtype=np.float32)
    images = 1.0 - np.clip(ink, 0.0, 1.0)
    return images.astype(np.float32).reshape(-1, IMAGE_SIZE, IMAGE_SIZE, 1)


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(key))


def _raster_positions(
    labels: np.ndarray, style: WriterStyle, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the position of each pixel of each image in the glyph's raster.

    Returns:
      Columns and rows, float32 [n, 784] each.
    """
    n = len(labels)
    shake = style.shakiness
    center = (IMAGE_SIZE - 1) / 2
    y, x = np.mgrid[:IMAGE_SIZE, :IMAGE_SIZE].reshape(2, -1).astype(np.float32)
    x, y = x - center, y - center
    u, v = (np.pi / IMAGE_SIZE) * x, (np.pi / IMAGE_SIZE) * y
    basis = np.stack([np.sin(2 * u), np.sin(2 * v), np.cos(u + v), np.cos(u - v)])
    warp = style.warp + rng.normal(0.0, 0.3 * shake, (n, 2, 4))
    bend = (warp.reshape(-1, 4) @ basis).reshape(n, 2, -1).astype(np.float32)
    shift = rng.normal(0.0, 0.7 * shake, (n, 2, 1)).astype(np.float32)
    across = x + bend[:, 0] - shift[:, 0]
    down = y + bend[:, 1] - shift[:, 1]
    to_raster = _inverse_affine(labels, style, rng)
    middle = (glyph_rasters.SIZE - 1) / 2
    columns = to_raster[:, 0, :1] * across + to_raster[:, 0, 1:] * down + middle
    rows = to_raster[:, 1, :1] * across + to_raster[:, 1, 1:] * down + middle
    return columns, rows


def _inverse_affine(
    labels: np.ndarray, style: WriterStyle, rng: np.random.Generator
) -> np.ndarray:
    """Returns the [n, 2, 2] float32 matrices from image to raster offsets."""
    n = len(labels)
    shake = style.shakiness
    angle = style.rotation + rng.normal(0.0, 0.08 * shake, n)
    slant = style.slant + rng.normal(0.0, 0.08 * shake, n)
    height = style.height * np.exp(rng.normal(0.0, 0.06 * shake, n))
    aspect = style.aspect * np.exp(rng.normal(0.0, 0.06 * shake, n))
    is_small = np.array(
        [name.islower() and name not in _TALL_LOWERCASE for name in CLASSES]
    )
    height = height * np.where(is_small[labels], style.lowercase, 1.0)
    scale_y = height / glyph_rasters.EXTENT
    scale_x = scale_y * aspect
    cos, sin = np.cos(angle), np.sin(angle)
    # Image = rotation @ shear @ scale @ raster.
    matrix = np.empty((n, 2, 2))
    matrix[:, 0, 0] = cos * scale_x
    matrix[:, 1, 0] = sin * scale_x
    matrix[:, 0, 1] = (-cos * slant - sin) * scale_y
    matrix[:, 1, 1] = (-sin * slant + cos) * scale_y
    return np.linalg.inv(matrix).astype(np.float32)


def _interpolate(
    glyphs: np.ndarray, index: np.ndarray, rows: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """Returns float32 [n, p]: `glyphs[index]` at (rows, columns), bilinearly."""
    limit = np.float32(glyph_rasters.SIZE - 1.001)
    inner_rows, inner_columns = np.clip(rows, 0, limit), np.clip(columns, 0, limit)
    # Outside the raster, the distance to the outline only increases.
    beyond = np.abs(rows - inner_rows) + np.abs(columns - inner_columns)
    rows, columns = inner_rows, inner_columns
    top, left = rows.astype(np.int32), columns.astype(np.int32)
    down, across = rows - top, columns - left
    corner = index[:, None] * glyph_rasters.SIZE**2 + top * glyph_rasters.SIZE + left
    flat = glyphs.reshape(-1)
    upper = flat[corner] * (1 - across) + flat[corner + 1] * across
    corner += glyph_rasters.SIZE
    lower = flat[corner] * (1 - across) + flat[corner + 1] * across
    return upper * (1 - down) + lower * down - beyond


def _writer_glyph(style: WriterStyle, label: int) -> np.ndarray:
    """Returns the float32 [64, 64] signed distances of a writer's glyph."""
    glyph = glyph_rasters.glyph(int(style.fonts[label]), int(style.shapes[label]))
    mirrored, upside_down = style.flips[label]
    if mirrored:
        glyph = glyph[:, ::-1]
    if upside_down:
        glyph = glyph[::-1]
    glyph = np.rot90(glyph, style.turns[label])
    angle, offset, half_length = style.strokes[label]
    if half_length > 0:
        glyph = np.maximum(glyph, glyph_rasters.stroke(angle, offset, half_length))
    return glyph
