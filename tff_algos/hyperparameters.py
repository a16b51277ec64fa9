"""Hyperparameters as fields of frozen records, each checked when it is set.

An algorithm's record is an attrs class whose fields are made by `hparam` and
`choice`. The command line derives its flags from the records, so name, default,
help, valid range and the paper's symbol are written once.
"""

import math
import numbers
from collections.abc import Iterable
from typing import Any

import attrs
import numpy as np

from tff_algos import messages

# TensorFlow counts rounds and steps in int32.
MAX_INTEGER = 2**31 - 1


class HyperparameterError(ValueError):
    """A hyperparameter has a value that it must not have.

    The message shows the beginning of a long value.
    """

    def __init__(self, name: str, value: Any, expected: str) -> None:
        shown = messages.shown(value)
        super().__init__(f"{name}={shown} is not valid: expected {expected}.")
        self.name = name


@attrs.frozen
class Interval:
    """The numbers from `low` to `high`; an end that is open does not belong."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        # Unlike math.isfinite, a comparison takes integers beyond any float.
        return above and below and -math.inf < value < math.inf

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{'>' if self.low_open else '>='} {self.low:g}"
        left, right = "([", ")]"
        return (
            f"in {left[not self.low_open]}{self.low:g}, "
            f"{self.high:g}{right[not self.high_open]}"
        )


POSITIVE = Interval(low=0, low_open=True)
NON_NEGATIVE = Interval(low=0)
AT_LEAST_ONE = Interval(low=1)
MOMENTUM = Interval(low=0, high=1, high_open=True)
SHARE = DECAY = Interval(low=0, high=1, low_open=True)


def _as_python_number(value: Any, kind: type) -> Any:
    """Returns a number as `kind`, and what is none of that kind unchanged."""
    if isinstance(value, bool):
        return value
    if kind is int and isinstance(value, numbers.Integral):
        return int(value)
    if kind is float and isinstance(value, numbers.Real):
        try:
            return float(value)
        except OverflowError:
            return value
    return value


def hparam(
    default: float | None,
    kind: type,
    valid: Interval,
    help: str,  # absl's word for it
    symbol: str | None = None,
    replaces: str | None = None,
) -> Any:
    """Declares a numeric hyperparameter.

    Args:
      default: Its default; None makes it optional.
      kind: `int` or `float`, which other numbers, such as NumPy's, become. Integers
        are taken for floats, never the reverse; booleans are no numbers.
      valid: The values it may have; integers are at most `MAX_INTEGER` unless it has
        an upper end of its own.
      help: One line for `--help`, with the unit where there is one.
      symbol: The paper's symbol.
      replaces: The hyperparameter that this one replaces where it is set.
    """
    optional = default is None
    capped = kind is int and valid.high == math.inf

    def convert(value):
        return _as_python_number(value, kind)

    def check(instance, attribute, value):
        del instance
        if value is None and optional:
            return
        expected = f"{'an integer' if kind is int else 'a number'} {valid}"
        a_number = isinstance(value, kind) and not isinstance(value, bool)
        if not a_number or value not in valid:
            raise HyperparameterError(attribute.name, value, expected)
        if capped and value > MAX_INTEGER:
            expected += f" and at most {MAX_INTEGER}"
            raise HyperparameterError(attribute.name, value, expected)

    return attrs.field(
        default=default,
        converter=convert,
        validator=check,
        metadata={
            "help": help,
            "symbol": symbol,
            "kind": kind,
            "valid": valid,
            "replaces": replaces,
        },
    )


def choice(default: str | None, choices: Iterable[str], help: str) -> Any:
    """Declares a hyperparameter that is one of a few words; optional with None."""
    choices = tuple(choices)

    def check(instance, attribute, value):
        del instance
        if value not in choices and not (value is None and default is None):
            raise HyperparameterError(
                attribute.name, value, f"one of {', '.join(choices)}"
            )

    return attrs.field(
        default=default,
        validator=check,
        metadata={"help": help, "kind": str, "choices": choices},
    )


def switch(default: bool, help: str) -> Any:
    """Declares a hyperparameter that is on or off."""

    def convert(value):
        return bool(value) if isinstance(value, np.bool_) else value

    def check(instance, attribute, value):
        del instance
        if type(value) is not bool:
            raise HyperparameterError(attribute.name, value, "True or False")

    return attrs.field(
        default=default,
        converter=convert,
        validator=check,
        metadata={"help": help, "kind": bool},
    )
