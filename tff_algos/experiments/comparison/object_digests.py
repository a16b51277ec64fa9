"""Tells apart versions of algorithms and tasks that are objects, as notebooks have.

A name or a flag says nothing of an edited function. What it does is in its bytecode, its
defaults, and the functions, classes and constants of its module that it uses.
"""

import enum
import functools
import hashlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np

_PLAIN = str | bytes | int | float | complex | np.generic | enum.Enum | range | None


def digest(value: Any) -> str:
    """Returns 8 hexadecimal digits that differ if an object or its code does.

    Functions that its module imports count by name, and comments not at all. Another
    version of Python may give other digits.
    """
    found = hashlib.sha256()
    for part in _parts(value, {}):
        found.update(f"{part}\0".encode())
    return found.hexdigest()[:8]


def _parts(value: Any, seen: dict[int, Any]) -> Iterator[str]:
    """Yields texts that say what a value is.

    Args:
      value: The value.
      seen: Values that have begun, by id; they stay alive, so that no other gets the id.
    """
    yield type(value).__qualname__
    if isinstance(value, _PLAIN):
        yield repr(value)
        return
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.shape}{value.dtype}{hashlib.sha256(value.tobytes()).hexdigest()}"
        return
    for inner in _inner(value):
        yield from _parts(inner, seen)


def _inner(value: Any) -> Iterator[Any]:
    """Yields what a value is made of; nothing if that is not known."""
    match value:
        case types.FunctionType():
            yield from _of_function(value)
        case types.CodeType():
            yield from (value.co_code, value.co_names, value.co_consts)
        case types.CellType():
            yield from _of_cell(value)
        case types.MethodType():
            yield from (value.__func__, value.__self__)
        case functools.partial():
            yield from (value.func, value.args, value.keywords)
        case property():
            yield from (value.fget, value.fset)
        case staticmethod() | classmethod():
            yield value.__func__
        case type() | types.ModuleType():
            yield value.__name__
            if attrs.has(value):
                yield from ((each.name, each.default) for each in attrs.fields(value))
        case Mapping():
            yield from value.items()
        case tuple() | list():
            yield from value
        case set() | frozenset():
            yield from sorted(map(repr, value))
        case _ if attrs.has(type(value)):
            yield from attrs.asdict(value, recurse=False).values()
        case _:
            # As tf.function and functools.cache have it.
            yield getattr(value, "__wrapped__", None)


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    yield from (function.__code__, function.__defaults__, function.__kwdefaults__)
    yield from function.__closure__ or ()
    for name in sorted(_names(function.__code__)):
        used = function.__globals__.get(name)
        own = getattr(used, "__module__", None) == function.__module__
        if isinstance(used, type) and own:
            yield from _of_class(used)
        elif isinstance(used, types.FunctionType) and not own:
            yield used.__qualname__
        else:
            yield used


def _of_class(own: type) -> Iterator[Any]:
    """Yields what is in a class and in its bases of the same module."""
    for each in own.__mro__:
        if each.__module__ == own.__module__:
            yield from (
                member
                for name, member in vars(each).items()
                if callable(member) or not name.startswith("__")
            )


def _names(code: types.CodeType) -> set[str]:
    """Returns the names that code looks up, also in the functions that it defines."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _of_cell(cell: types.CellType) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:
        # Not set yet, as in a function that is being defined.
        return
