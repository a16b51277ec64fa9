"""Glyphs and strokes as signed distances: positive inside, of a known extent."""

import numpy as np
import pytest

from tasks import glyph_rasters

ONE = glyph_rasters.CLASSES.index("1")


def test_classes_are_those_of_emnist_in_its_order():
    assert glyph_rasters.CLASSES.startswith("0123456789ABC")
    assert glyph_rasters.CLASSES.endswith("xyz") and len(glyph_rasters.CLASSES) == 62


def test_a_glyph_is_in_the_middle_and_as_large_as_its_extent():
    field = glyph_rasters.glyph(0, ONE)
    assert field.shape == (64, 64) and field.dtype == np.float32
    # The pen's offset apart, ink is where distances are positive.
    rows, columns = np.nonzero(field + 0.6 > 0)
    height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
    assert abs(max(height, width) - glyph_rasters.EXTENT) <= 2
    assert abs((rows.min() + rows.max()) / 2 - 31.5) <= 1
    with pytest.raises(ValueError, match="read-only"):
        field[0, 0] = 0


def test_distances_change_little_from_pixel_to_pixel():
    field = glyph_rasters.glyph(3, glyph_rasters.CLASSES.index("O"))
    assert np.max(np.abs(np.diff(field, axis=1))) <= 1.5
    # The middle of an O is outside of it, and so are the corners.
    assert field[32, 32] < 0 and field[0, 0] < 0 and field.max() > 0


def test_a_stroke_has_straight_edges_at_known_distances():
    field = glyph_rasters.stroke(angle=0.0, offset=0.0, half_length=0.5)
    # Rows 31 and 32 are half a pixel beside its axis, rows 30 and 33 one and a half.
    np.testing.assert_allclose(field[30:34, 32], [0.0, 1.0, 1.0, 0.0], atol=1e-6)
    # It ends 20 pixels from the middle: from there on distances grow.
    assert field[31, 51] == pytest.approx(1.0)
    assert field[31, 55] == pytest.approx(1.5 - np.hypot(0.5, 3.5))
    turned = glyph_rasters.stroke(angle=np.pi / 2, offset=0.0, half_length=0.5)
    np.testing.assert_allclose(turned, field.T, atol=1e-5)
