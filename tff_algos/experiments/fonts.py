"""Fonts for the names of clients and classes, which may be in any script."""

import contextlib
import functools
import warnings
from collections.abc import Iterator

import matplotlib
import matplotlib.figure
import matplotlib.text
from matplotlib import font_manager

# Matplotlib's fonts for missing characters and for formulas.
_UNSUITED = ("Last Resort", "STIXNonUnicode", "STIXSize", "cm")


def choose(figure: matplotlib.figure.Figure) -> None:
    """Gives each text of a figure fonts that have its characters, where there are any.

    Only the mathematical notation of ticks remains mathematics: names may have dollars.
    """
    for axes in figure.axes:
        # Labels of ticks have their text only once they are asked for.
        axes.get_xticklabels()
        axes.get_yticklabels()
    for text in figure.findobj(matplotlib.text.Text):
        shown = text.get_text()
        if not shown:
            continue
        text.set_parse_math(r"\mathdefault" in shown)
        if others := families_for(shown):
            text.set_fontfamily([*matplotlib.rcParams["font.family"], *others])


def families_for(text: str) -> list[str]:
    """Returns the installed fonts that together have what the default font lacks."""
    default = font_manager.findfont(font_manager.FontProperties())
    lacking = {ord(each) for each in text if each.isprintable()} - _glyphs(default)
    found = []
    for family, path in _families().items() if lacking else ():
        if lacking & _glyphs(path):
            found.append(family)
            lacking -= _glyphs(path)
        if not lacking:
            break
    return found


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Silences matplotlib's warnings of characters that no font has: it draws boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


@functools.cache
def _families() -> dict[str, str]:
    """Returns the paths of upright fonts by family, those most like the default first.

    Families without a face of normal weight are left out: matplotlib logs a warning where
    it draws with another.
    """
    paths = {
        entry.name: entry.fname
        for entry in font_manager.fontManager.ttflist
        if (entry.style, entry.weight, entry.stretch) == ("normal", 400, "normal")
        and not entry.name.startswith(_UNSUITED)
    }
    order = sorted(paths, key=lambda name: ("Sans" not in name, "Mono" in name, name))
    return {name: paths[name] for name in order}


@functools.cache
def _glyphs(path: str) -> frozenset[int]:
    """Returns the characters of a font."""
    try:
        return frozenset(font_manager.get_font(path).get_charmap())
    except (OSError, RuntimeError):  # It is damaged, or was removed.
        return frozenset()
