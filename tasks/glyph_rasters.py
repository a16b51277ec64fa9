"""Glyphs of matplotlib's fonts as signed distance fields.

A field contains signed distances to the glyph's outline, in raster pixels, positive
inside, so that the pen's width is a threshold and warping keeps edges smooth.
"""

import functools
import os
import string

import matplotlib
import numpy as np
import scipy.ndimage
from PIL import Image, ImageDraw, ImageFont

# The classes of EMNIST in the order of TFF's labels.
CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase

SIZE = 64
# The longer side of every glyph, in raster pixels.
EXTENT = 40
_OVERSAMPLING = 2

# Base fonts with the pen offset (raster pixels) that equalizes their weights.
_FONTS = (
    ("DejaVuSans.ttf", -0.6),
    ("DejaVuSans-Oblique.ttf", -0.6),
    ("DejaVuSansMono.ttf", -0.4),
    ("DejaVuSerif.ttf", 0.0),
    ("DejaVuSerif-Italic.ttf", 0.0),
    ("STIXGeneral.ttf", 0.7),
    ("STIXGeneralItalic.ttf", 0.7),
    ("cmr10.ttf", 0.7),
    ("cmss10.ttf", 0.2),
    ("cmti10.ttf", 0.8),
    ("cmtt10.ttf", 0.5),
    ("cmmi10.ttf", 0.8),
)

NUM_FONTS = len(_FONTS)


@functools.lru_cache(maxsize=NUM_FONTS * len(CLASSES))
def glyph(font: int, label: int) -> np.ndarray:
    """Returns the float32 [64, 64] signed distances of a font's glyph."""
    name, offset = _FONTS[font]
    size = SIZE * _OVERSAMPLING
    mask = _rasterize(name, CLASSES[label], EXTENT * _OVERSAMPLING)
    top, left = (size - mask.shape[0]) // 2, (size - mask.shape[1]) // 2
    canvas = np.zeros((size, size), bool)
    canvas[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
    distance = scipy.ndimage.distance_transform_edt(
        canvas
    ) - scipy.ndimage.distance_transform_edt(~canvas)
    blocks = distance.reshape(SIZE, _OVERSAMPLING, SIZE, -1)
    field = (blocks.mean(axis=(1, 3)) / _OVERSAMPLING + offset).astype(np.float32)
    field.flags.writeable = False
    return field


def stroke(angle: float, offset: float, half_length: float) -> np.ndarray:
    """Returns the [64, 64] signed distances of a straight stroke."""
    y, x = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
    along = x * np.cos(angle) + y * np.sin(angle)
    aside = y * np.cos(angle) - x * np.sin(angle) - offset * EXTENT
    beyond = np.maximum(np.abs(along) - half_length * EXTENT, 0.0)
    return (1.5 - np.hypot(aside, beyond)).astype(np.float32)


def _rasterize(font: str, text: str, extent: int) -> np.ndarray:
    """Returns a bool mask of the text, cropped, whose longer side is `extent`."""
    path = os.path.join(matplotlib.get_data_path(), "fonts", "ttf", font)
    probe = _render(path, text, 4 * extent)
    size = round(4 * extent * extent / max(probe.shape))
    mask = _render(path, text, size)
    return mask[:extent, :extent]


def _render(path: str, text: str, font_size: int) -> np.ndarray:
    font = ImageFont.truetype(path, font_size)
    canvas = Image.new("L", (3 * font_size, 3 * font_size))
    ImageDraw.Draw(canvas).text((font_size, font_size), text, fill=255, font=font)
    return np.asarray(canvas.crop(canvas.getbbox())) > 127
