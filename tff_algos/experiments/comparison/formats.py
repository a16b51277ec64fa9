"""Numbers and tables as text, in Markdown that is also readable on a terminal."""

import math
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table; the first column is left-aligned, others right."""
    widths = [
        max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)
    ]
    lines = []
    for row in (header, *rows):
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(c.rjust(w) for c, w in others)]
        lines.append(f"| {' | '.join(cells)} |")
    rule = [f"{'-' * widths[0]}", *(f"{'-' * (w - 1)}:" for w in widths[1:])]
    lines.insert(1, f"| {' | '.join(rule)} |")
    return "\n".join(lines)


def number(value: float) -> str:
    """Returns at least three significant digits, without exponential notation."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"
