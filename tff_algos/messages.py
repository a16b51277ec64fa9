"""Text for one-line messages: short and printable, whatever the input."""

import contextlib
import difflib
import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any

_MAX_VALUE = 80
# How similar a name must be to be suggested: `csv` to `csv:FILE`, but not `nothing` to
# `tiny_imagenet`.
_SIMILAR = 0.45
_MAX_REASON = 300
# Python refuses to convert integers of more than 4,300 digits to strings.
_MAX_BITS = 14_000


def shortened(text: str, limit: int = _MAX_VALUE) -> str:
    """Returns `text`; if it is long, its beginning and its length.

    Args:
      text: Text from a user; nonprintable characters are escaped.
      limit: The largest number of characters to keep.
    """
    kept = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:limit])
    return kept if len(text) <= limit else f"{kept}... ({len(text)} characters)"


def shown(value: Any) -> str:
    """Returns `repr(value)`, shortened."""
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"an integer of {value.bit_length()} bits"
    return shortened(repr(value))


def unknown(flag: str, name: str, names: Iterable[str]) -> str:
    """Returns what to say of a flag's value that is none of the names it can be."""
    names = list(names)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=_SIMILAR)
    meant = f", did you mean {nearest[0]}?" if nearest else "."
    return f"--{flag}={shortened(name)} is unknown{meant} One of: {', '.join(names)}."


def one_line(error: BaseException) -> str:
    """Returns an error's message on one line, without TensorFlow's graph details."""
    text = getattr(error, "message", None)
    if isinstance(text, str):
        # Of TensorFlow's message, keep the last line before "[[{{node x}}]]", and of
        # "... {{node y}} REASON" or "... with iterator: Z: REASON" only REASON.
        text = text.partition("[[")[0].strip().rpartition("\n")[2]
        text = re.sub(r".*(\}\} |with iterator: \S+: )", "", text)
        text = re.sub(r" \[Op:\w+\]", "", text)
    text = " ".join((text or str(error)).split())
    return shortened(text or type(error).__name__, _MAX_REASON)


@contextlib.contextmanager
def not_logged(text: str, logger: logging.Logger) -> Iterator[None]:
    """Suppresses the messages of a logger that contain a text."""

    def is_other(record: logging.LogRecord) -> bool:
        return text not in record.getMessage()

    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)
