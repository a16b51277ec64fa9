"""Hyperparameters, declared once: in the signature of the function that takes them.

    @checked
    def build_gradma(
        model_fn, *, memory_decay: Annotated[float, hparam(low=0, high=1, symbol="beta_2")] = 0.5
    ):
        \"\"\"...

        Args:
          memory_decay: Decay factor of remembered updates per round.
        \"\"\"

The annotation gives type, range and symbol, the signature the default, the docstring
the help. The check at call time (`checked`), command-line flags, lists and tables
(`declared`) follow from these. Frozen records of settings are declared the same way, by
`record`.
"""

import functools
import inspect
import math
import numbers
import os
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

import attrs
import numpy as np

from tff_algos import messages

# TensorFlow counts rounds and steps in int32.
MAX_INTEGER = 2**31 - 1
# The default of a hyperparameter that has none.
REQUIRED = inspect.Parameter.empty
# How a flag says that a list is empty, or that an optional value is None.
NONE = "none"

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Mark = TypeVar("_Mark")
_Check = Callable[[Any], object]


class HyperparameterError(ValueError):
    """A hyperparameter has a value that it must not have.

    The message shows the beginning of a long value.
    """

    def __init__(self, name: str, value: Any, expected: str) -> None:
        shown = messages.shown(value)
        super().__init__(f"{name}={shown} is not valid: expected {expected}.")
        self.name = name


class UnusableHyperparameterError(HyperparameterError):
    """A hyperparameter is set that, beside the others, cannot be used.

    `why` goes on with the sentence: "with ...", "without ...", "by ...".
    """

    def __init__(self, name: str, value: Any, why: str) -> None:
        end = "" if why.endswith("?") else "."
        ValueError.__init__(
            self, f"{name}={messages.shown(value)} cannot be used {why}{end}"
        )
        self.name = name


class MissingHyperparameterError(HyperparameterError):
    """A hyperparameter has to be set here; `why` says so and what is valid."""

    def __init__(self, name: str, why: str) -> None:
        ValueError.__init__(self, f"{name} is missing: {why}.")
        self.name = name


def check_list(name: str, value: Any) -> None:
    """Raises `HyperparameterError` for a text in place of a list of texts, or None."""
    if isinstance(value, str):
        raise HyperparameterError(name, value, f"a list, such as [{value!r}]")


def check_replaced(
    name: str, replaced: str | None, settings: Mapping[str, Any]
) -> None:
    """Raises `HyperparameterError` if settings hold one that replaces another, and both.

    None, which removes a value that defaults or a flag file set, replaces nothing.

    Args:
      name: The hyperparameter that replaces the other.
      replaced: The other; None if it replaces none.
      settings: What was set, by name.
    """
    if settings.get(name) is not None and settings.get(replaced) is not None:
        raise UnusableHyperparameterError(
            name,
            settings[name],
            f"with --{replaced}={messages.shown(settings[replaced])}, which it "
            "replaces: set one of the two",
        )


@attrs.frozen
class Interval:
    """The numbers from `low` to `high`; an open end is excluded."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def __contains__(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            return False
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        # Unlike math.isfinite, a comparison takes integers beyond any float.
        return above and below and -math.inf < value < math.inf

    def __str__(self) -> str:
        if self.low == -math.inf:
            bound = f"{'<' if self.high_open else '<='} {self.high:g}"
            return "" if self.high == math.inf else bound
        if self.high == math.inf:
            return f"{'>' if self.low_open else '>='} {self.low:g}"
        left, right = "([", ")]"
        return (
            f"in {left[not self.low_open]}{self.low:g}, "
            f"{self.high:g}{right[not self.high_open]}"
        )


POSITIVE = Interval(low=0, low_open=True)


@attrs.frozen
class Form:
    """A pattern that every valid text of a flag matches.

    It lets the command line refuse a typo before it imports TensorFlow, which a `check`
    may need.

    Attributes:
      pattern: The regular expression, of the whole text; invalid ones may match too.
      expected: What is expected, for errors.
    """

    pattern: str
    expected: str

    def check(self, name: str, text: str) -> None:
        """Raises `HyperparameterError` for a text of another form."""
        if not re.fullmatch(self.pattern, text):
            raise HyperparameterError(name, text, self.expected)


@attrs.frozen(kw_only=True, repr=False)
class hparam:
    """Marks an annotated argument as a hyperparameter, and bounds it.

    Attributes:
      low: The smallest valid number.
      high: The largest valid number; integers are at most `MAX_INTEGER` without it.
      above: A number that all valid ones exceed, instead of `low`.
      below: A number that exceeds all valid ones, instead of `high`.
      symbol: The paper's symbol.
      replaces: The hyperparameter that this one replaces where it is set.
      form: What a text has to look like.
      check: Raises `HyperparameterError` for an invalid value, of a text that is more
        than one of a few words; called with every value but None.
    """

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    symbol: str | None = None
    replaces: str | None = None
    form: Form | None = None
    check: _Check | None = None

    @property
    def interval(self) -> Interval:
        """The valid numbers."""
        low = self.above if self.low is None else self.low
        high = self.below if self.high is None else self.high
        return Interval(
            -math.inf if low is None else low,
            math.inf if high is None else high,
            self.above is not None,
            self.below is not None,
        )

    def __repr__(self) -> str:
        """Returns what `help` shows of it in a signature."""
        bounded = self.interval != Interval()
        notes = [repr(self.symbol)] * bool(self.symbol) + [str(self.interval)] * bounded
        return f"hparam({', '.join(notes)})"


@attrs.frozen
class instance:
    """Marks an annotated argument of which values must be instances of the class.

    For classes of which others would fail deep inside of TFF, or be ignored.

    Attributes:
      expected: What is expected, for errors.
    """

    expected: str


@attrs.frozen(kw_only=True)
class Hyperparameter:
    """What a declaration says.

    Attributes:
      name: The argument.
      kind: `int`, `float`, `bool`, `str`, or `tuple` for a list of words.
      default: Its default, or `REQUIRED`.
      is_optional: Whether it may be None.
      valid: The valid numbers.
      choices: The valid words, of a `str` that is one of a few or of a list of them.
      symbol: The paper's symbol, or None.
      replaces: The hyperparameter that it replaces where it is set, or None.
      form: As in `hparam`.
      check: As in `hparam`.
      help: What it is, on one line, where that was looked up (`experiments.help_texts`).
    """

    name: str
    kind: type
    default: Any
    is_optional: bool
    valid: Interval
    choices: tuple[str, ...]
    symbol: str | None
    replaces: str | None
    form: Form | None
    check: _Check | None
    help: str = ""

    def checked(self, value: Any) -> Any:
        """Returns a value as `kind`.

        Numbers of other kinds, such as NumPy's, are taken; integers for floats, never
        the reverse. Booleans are not numbers. Paths are texts.

        Raises:
          HyperparameterError: If it is invalid.
        """
        if value is None and self.is_optional:
            return None
        if self.kind in (int, float):
            return self._checked_number(value)
        if self.kind is bool:
            if not isinstance(value, bool | np.bool_):
                raise HyperparameterError(self.name, value, "True or False")
            return bool(value)
        if self.kind is tuple:
            return self._checked_words(value)
        return self._checked_text(value)

    def _checked_text(self, value: Any) -> str | Sequence[str]:
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
        if self.choices and text not in self.choices:
            expected = f"one of {', '.join(self.choices)}"
            raise HyperparameterError(self.name, value, expected)
        if self.form is not None and isinstance(text, str):
            self.form.check(self.name, text)
        if self.check is not None:
            self.check(text)
        elif not isinstance(text, str | list | tuple):
            raise HyperparameterError(self.name, value, "a text")
        return text

    def _checked_number(self, value: Any) -> int | float:
        expected = self._expected_number
        converted = _as_python_number(value, self.kind)
        is_number = isinstance(converted, self.kind) and not isinstance(value, bool)
        if not is_number or converted not in self.valid:
            raise HyperparameterError(self.name, value, expected)
        if self.kind is int and converted > MAX_INTEGER:
            expected += f" and at most {MAX_INTEGER}"
            raise HyperparameterError(self.name, value, expected)
        return converted

    @property
    def _expected_number(self) -> str:
        kind = "an integer" if self.kind is int else "a number"
        return f"{kind} {self.valid}".rstrip()

    def _checked_words(self, value: Any) -> tuple[str, ...]:
        words = tuple(value) if isinstance(value, Sequence) else (value,)
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        if not is_list or set(words) - set(self.choices) or len({*words}) != len(words):
            shown = ",".join(words) if is_list and all(map(_is_str, words)) else value
            raise HyperparameterError(self.name, shown, self.expected_words)
        return words

    @property
    def may_be_unset(self) -> bool:
        """Whether the word for None unsets it: not where it may be a value itself."""
        has_form = self.kind in (int, float) or self.choices or self.form is not None
        return self.is_optional and bool(has_form) and NONE not in self.choices

    @property
    def expected_words(self) -> str:
        """The valid lists of words."""
        return f"a list of {', '.join(self.choices)}, each once, or {NONE}"

    def parse(self, value: Any) -> Any:
        """Returns the value that a flag's stands for: a list of its words, or None."""
        if self.may_be_unset and value == NONE:
            return None
        if self.kind is not tuple or not isinstance(value, str):
            return value
        return () if value == NONE else tuple(value.split(","))

    def format(self, value: Any) -> Any:
        """Returns what `parse` returns the value of."""
        if self.kind is not tuple or value is None or value is REQUIRED:
            return value
        return ",".join(value) or NONE

    def describe(self) -> str:
        """Returns help, symbol and valid values on one line."""
        notes = [self.symbol] if self.symbol else []
        if self.kind is tuple:
            notes.append(self.expected_words)
        elif self.choices:
            notes.append("|".join((*self.choices, *[NONE] * self.may_be_unset)))
        elif self.kind in (int, float):
            valid = str(self.valid) or self._expected_number
            notes.append(f"{valid}{f' or {NONE}' * self.is_optional}")
        elif self.may_be_unset:
            notes.append(f"or {NONE}")
        return f"{self.help} ({'; '.join(notes)})" if notes else self.help


def _is_str(value: Any) -> bool:
    return isinstance(value, str)


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


@functools.cache
def declared(target: Callable[..., Any]) -> Mapping[str, Hyperparameter]:
    """Returns the hyperparameters that a function or a record declares, by name."""
    hints = typing.get_type_hints(target, include_extras=True)
    if attrs.has(target):
        arguments = [
            (
                f.name,
                hints.get(f.name),
                REQUIRED if f.default is attrs.NOTHING else f.default,
            )
            for f in attrs.fields(target)
        ]
    else:
        parameters = inspect.signature(target).parameters.values()
        arguments = [(p.name, hints.get(p.name), p.default) for p in parameters]
    found = {
        name: _read(name, annotation, default)
        for name, annotation, default in arguments
        if _marked(annotation) is not None
    }
    return types.MappingProxyType(found)


def _mark(annotation: Any, kind: type[_Mark]) -> _Mark | None:
    if typing.get_origin(annotation) is not Annotated:
        return None
    return next((m for m in annotation.__metadata__ if isinstance(m, kind)), None)


def _members(annotation: Any) -> tuple[Any, ...]:
    """Returns the members of a union, or the annotation."""
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    return typing.get_args(annotation) if is_union else (annotation,)


def _marked(annotation: Any) -> Any:
    """Returns what is marked as a hyperparameter: the annotation, or its only member."""
    members = [each for each in _members(annotation) if each is not types.NoneType]
    is_marked = len(members) == 1 and _mark(members[0], hparam) is not None
    return members[0] if is_marked else None


def _read(name: str, annotation: Any, default: Any) -> Hyperparameter:
    """Returns a hyperparameter.

    Raises:
      TypeError: If it is of a kind that flags cannot have.
    """
    marked = _marked(annotation)
    marker = _mark(marked, hparam)
    members = (*_members(annotation), *_members(typing.get_args(marked)[0]))
    is_optional = types.NoneType in members
    kinds = [
        each
        for each in _members(typing.get_args(marked)[0])
        if each is not types.NoneType
    ]
    kind, choices = kinds[0], ()
    if typing.get_origin(kind) is Literal:
        kind, choices = str, typing.get_args(kind)
    elif typing.get_origin(kind) is Sequence:
        kind, choices = tuple, typing.get_args(typing.get_args(kind)[0])
    has_words = bool(choices) and all(map(_is_str, choices))
    is_known = kind in (int, float, bool, str) or (kind is tuple and has_words)
    if len(kinds) > 1 or not is_known or (choices and not has_words):
        raise TypeError(
            f"{name}: an hparam is an int, a float, a bool, a str, a Literal of words or a "
            f"Sequence of these, each also with None; found {annotation}."
        )
    return Hyperparameter(
        name=name,
        kind=kind,
        default=default,
        is_optional=is_optional,
        valid=marker.interval,
        choices=choices,
        symbol=marker.symbol,
        replaces=marker.replaces,
        form=marker.form,
        check=marker.check,
    )


def checked(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Checks the hyperparameters that a function declares whenever it is called.

    Checks also the arguments marked by `instance`.

    Raises:
      HyperparameterError: If one is invalid.
    """
    signature = inspect.signature(function)
    declarations = declared(function)
    instances = _instances(function)

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # Python's own words, with the name.
        for name in bound.arguments.keys() & declarations.keys():
            value = bound.arguments[name]
            bound.arguments[name] = declarations[name].checked(value)
        for name in bound.arguments.keys() & instances.keys():
            value, (classes, mark) = bound.arguments[name], instances[name]
            if not isinstance(value, classes):
                raise HyperparameterError(name, value, mark.expected)
        return function(*bound.args, **bound.kwargs)

    return call


def _instances(
    function: Callable[..., Any],
) -> Mapping[str, tuple[tuple[type, ...], instance]]:
    """Returns the classes of the arguments marked by `instance`, and the marks."""
    found = {}
    for name, hint in typing.get_type_hints(function, include_extras=True).items():
        members = _members(hint)
        for member in members:
            mark = _mark(member, instance)
            if mark is not None:
                optional = (types.NoneType,) * (types.NoneType in members)
                found[name] = ((typing.get_args(member)[0], *optional), mark)
    return found


def _check_fields(cls: type, fields: list[attrs.Attribute]) -> list[attrs.Attribute]:
    """Gives every hyperparameter among a record's fields its check."""
    hints = typing.get_type_hints(cls, include_extras=True)

    def evolved(field: attrs.Attribute) -> attrs.Attribute:
        hint = hints.get(field.name)
        if _marked(hint) is None:
            return field
        return field.evolve(converter=_read(field.name, hint, None).checked)

    return [evolved(field) for field in fields]


# A frozen record whose annotated fields are hyperparameters, checked when they are set.
# No slots, so that records can be mixed.
record = functools.partial(
    attrs.frozen, kw_only=True, slots=False, field_transformer=_check_fields
)
