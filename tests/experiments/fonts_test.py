"""Fonts for names in other scripts than the default font's."""

import warnings

import matplotlib.figure
from matplotlib import font_manager

from tff_algos.experiments import fonts
from tff_algos.experiments.figures import Figure

# "Arc" is in STIXGeneral, which matplotlib brings along, and not in DejaVu Sans.
ARC = "\N{ARC}"


def test_a_font_is_found_for_what_the_default_font_lacks():
    assert fonts.families_for("Hôpital") == []
    (family,) = fonts.families_for(f"Hôpital {ARC}")
    path = font_manager.findfont(family, fallback_to_default=False)
    assert ord(ARC) in font_manager.get_font(path).get_charmap()


def test_characters_that_no_font_has_get_none():
    assert fonts.families_for("\U0010ffff") == []
    # Beside them, others still have theirs.
    assert len(fonts.families_for(f"\U000e0100{ARC}")) == 1


def test_only_texts_that_need_another_font_get_it():
    figure = matplotlib.figure.Figure()
    axis = figure.subplots()
    axis.set_xticks([0], [ARC])
    axis.set_title("title")
    default = axis.title.get_fontfamily()
    fonts.choose(figure)
    (label,) = axis.get_xticklabels()
    assert label.get_fontfamily() == [*default, *fonts.families_for(ARC)]
    assert axis.title.get_fontfamily() == default


def test_fonts_are_looked_for_without_a_word(caplog, recwarn):
    fonts.families_for(f"\U0010ffff{ARC}")
    figure = Figure(2.0, 2.0)
    figure.suptitle(f"\U0010ffff{ARC}")
    figure.draw_without_rendering()
    assert not caplog.records and not recwarn.list


def test_only_warnings_of_glyphs_are_silenced():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with fonts.without_warnings():
            warnings.warn("Glyph 21271 (X) missing from font(s) Y.", stacklevel=1)
            warnings.warn("another", stacklevel=1)
    assert [str(each.message) for each in caught] == ["another"]
