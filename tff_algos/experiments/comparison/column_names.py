"""Names of columns, as `--columns` has them: all that can be said before any run."""

import math

from tff_algos.experiments.comparison.errors import flag_error

ROUNDS_TO, SECONDS, SUMMARY = "rounds_to", "seconds", "summary"
SERIES = ("final", "last", "best")


def parse(name: str) -> tuple[str, str]:
    """Returns the kind of a column and its argument.

    Args:
      name: "rounds_to:ACC", "seconds", a kind of `SERIES` with a metric, or a key of
        summary.json.

    Returns:
      One of `ROUNDS_TO`, `SECONDS`, `SERIES` and `SUMMARY`; and the accuracy, the metric
      or the key.

    Raises:
      ComparisonError: If the kind is unknown or its argument is invalid.
    """
    kind, colon, argument = name.partition(":")
    if name == SECONDS:
        return SECONDS, name
    if not colon:
        return SUMMARY, name
    if kind == ROUNDS_TO:
        return ROUNDS_TO, _accuracy(argument)
    if kind not in SERIES or not argument:
        kinds = ", ".join(f"{kind}:METRIC" for kind in SERIES)
        choices = f"{ROUNDS_TO}:ACC, {kinds}, {SECONDS} or a key of summary.json"
        raise flag_error("columns", name, choices)
    return kind, argument


def _accuracy(text: str) -> str:
    try:
        accuracy = float(text)
    except ValueError:
        accuracy = math.nan
    if not 0 < accuracy <= 1:
        raise flag_error("columns", f"{ROUNDS_TO}:{text}", "an accuracy in (0, 1]")
    return text
