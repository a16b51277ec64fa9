"""What hyperparameters are, in the words of the docstrings that describe them."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import docstring_parser

import tff_algos
from tff_algos.hyperparameters import NONE, Hyperparameter, declared

_AS_IN = re.compile(r"As in `(build_\w+)`")
_OTHERS_AS_IN = re.compile(r"As in `(build_\w+)`, and so is every")
_NONE = re.compile(r"\bNone\b")


def described(target: Callable[..., Any]) -> Mapping[str, Hyperparameter]:
    """Returns the hyperparameters that a function or a record declares, with help."""
    helps = _helps(target)
    return {
        name: attrs.evolve(hyperparameter, help=helps.get(name, ""))
        for name, hyperparameter in declared(target).items()
    }


def _helps_of_builder(name: str) -> Mapping[str, str]:
    """Returns what the docstring of a builder says; nothing of those of other packages."""
    builder = getattr(tff_algos, name, None)
    return {} if builder is None else _helps(builder)


@functools.cache
def _helps(target: Callable[..., Any]) -> Mapping[str, str]:
    """Returns what docstrings say of each argument, on one line.

    Docstrings refer to each other: "As in `build_x`" stands for that builder's text,
    "and so is every argument not listed here" for those of all others.
    """
    documented = target.__mro__[::-1] if inspect.isclass(target) else (target,)
    helps: dict[str, str] = {}
    for owner in documented:
        for parameter in docstring_parser.parse(owner.__doc__ or "").params:
            text = " ".join((parameter.description or "").split())
            others = _OTHERS_AS_IN.match(text)
            if others is not None:
                helps = {**_helps_of_builder(others[1]), **helps}
            same = _AS_IN.match(text)
            if same is not None:
                text = _helps_of_builder(same[1]).get(parameter.arg_name, text)
            helps[parameter.arg_name] = _NONE.sub(NONE, text).rstrip(".")
    return helps
