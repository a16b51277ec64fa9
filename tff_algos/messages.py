"""Text for one-line messages: short and printable, whatever went into it."""

import re
from typing import Any

_MAX_VALUE = 80
_MAX_REASON = 300
# Python writes out no integer of more than 4,300 digits.
_MAX_BITS = 14_000


def shortened(text: str, limit: int = _MAX_VALUE) -> str:
    """Returns `text`, or its beginning and its length where it is long.

    Args:
      text: What a user gave; characters that do not print are escaped.
      limit: The most characters that are kept.
    """
    kept = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:limit])
    return kept if len(text) <= limit else f"{kept}... ({len(text)} characters)"


def shown(value: Any) -> str:
    """Returns `repr(value)`, shortened."""
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"an integer of {value.bit_length()} bits"
    return shortened(repr(value))


def one_line(error: BaseException) -> str:
    """Returns why something failed, without the graph that TensorFlow adds."""
    text = getattr(error, "message", None)
    if isinstance(text, str):
        # TensorFlow's: its last line before "[[{{node x}}]]", without what stands before
        # "{{node y}} REASON" or "with iterator: Z: REASON".
        text = text.partition("[[")[0].strip().rpartition("\n")[2]
        text = re.sub(r".*(\}\} |with iterator: \S+: )", "", text)
    text = " ".join((text or str(error)).split())
    return shortened(text or type(error).__name__, _MAX_REASON)
