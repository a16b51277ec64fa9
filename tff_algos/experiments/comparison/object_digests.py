"""Tells apart versions of algorithms and tasks that are objects, as notebooks have.

A name or a flag says nothing of an edited function. What it does is in its bytecode, its
defaults, and the functions, classes and constants of its module that it uses.
"""

import dataclasses
import dis
import enum
import functools
import hashlib
import os
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

_PLAIN = str | bytes | int | float | complex | np.generic | enum.Enum | range | None
# Classes of these packages count by name.
_OURS = frozenset(["tasks", "tff_algos"])


def digest(value: Any) -> str:
    """Returns 8 hexadecimal digits that differ if an object or its code does.

    Functions that its module imports count by name only. Comments and the bodies of TFF
    computations do not count. Another version of Python may give other digits.
    """
    found = hashlib.sha256()
    for part in _parts(value, {}):
        found.update(f"{part}\0".encode())
    return found.hexdigest()[:8]


def _parts(value: Any, seen: dict[int, tuple[int, Any]]) -> Iterator[str]:
    """Yields texts that say what a value is.

    Args:
      value: The value.
      seen: The numbers of values that have begun, by id, and the values, which stay
        alive so that no other gets the id.
    """
    yield type(value).__qualname__
    if isinstance(value, _PLAIN):
        yield repr(value)
    elif id(value) in seen:
        yield f"as {seen[id(value)][0]}"
    else:
        seen[id(value)] = len(seen), value
        for inner in _inner(value):
            yield from _parts(inner, seen)
        yield "end"


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
        case functools.partial() | functools.partialmethod():
            yield from (value.func, value.args, value.keywords)
        case property():
            yield from (value.fget, value.fset)
        case functools.cached_property():
            yield value.func
        case staticmethod() | classmethod():
            yield value.__func__
        case type() | types.ModuleType():
            yield value.__name__
            yield from _defaults(value)
        case Mapping():
            yield from value.items()
        case tuple() | list():
            yield from value
        case set() | frozenset():
            yield from sorted(map(repr, value))
        case os.PathLike():
            yield os.fspath(value)
        case np.ndarray():
            yield from (value.shape, value.dtype.str)
            yield value.tolist() if value.dtype.hasobject else _hash_of(value)
        case tf.Tensor() | tf.Variable():
            yield np.asarray(value)
        case _:
            yield from _of_instance(value)


def _of_instance(value: Any) -> Iterator[Any]:
    if attrs.has(type(value)):
        yield attrs.asdict(value, recurse=False)
    elif dataclasses.is_dataclass(value) or _is_of_user(type(value)):
        yield dict(getattr(value, "__dict__", {}))
    elif isinstance(value, tff.learning.optimizers.Optimizer):
        yield dict(vars(value))
    elif hasattr(value, "to_numpy"):
        # A pandas data frame or series.
        yield from (list(getattr(value, "columns", ())), value.to_numpy())
    else:
        # Set by tf.function and functools.cache.
        yield getattr(value, "__wrapped__", None)
    if _is_of_user(type(value)):
        yield from _of_class(type(value))


def _is_of_user(kind: type) -> bool:
    """Returns whether a class is of a notebook, a script or a module of the user's."""
    name = kind.__module__
    package = name.partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    installed = package in sys.stdlib_module_names or "site-packages" in file
    return name == "__main__" or not (installed or package in _OURS)


def _hash_of(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    code = function.__code__
    if code.co_filename.startswith("<attrs generated"):
        # attrs writes a number into these that differs from process to process.
        return
    yield from (code, function.__defaults__, function.__kwdefaults__)
    yield from function.__closure__ or ()
    for name in sorted(_globals_of(code)):
        used = function.__globals__.get(name)
        own = getattr(used, "__module__", None) == function.__module__
        if isinstance(used, type) and own:
            yield from _of_class(used)
        elif isinstance(used, types.FunctionType) and not own:
            yield used.__qualname__
        else:
            yield used


def _defaults(value: Any) -> Iterator[Any]:
    """Yields the fields of an attrs class and their defaults."""
    if attrs.has(value):
        yield from ((each.name, each.default) for each in attrs.fields(value))


def _of_class(own: type) -> Iterator[Any]:
    """Yields what is in a class and in its bases of the same module."""
    yield from _defaults(own)
    for each in own.__mro__:
        if each.__module__ == own.__module__:
            yield from (
                member
                for name, member in vars(each).items()
                if callable(member) or not name.startswith("__")
            )


def _globals_of(code: types.CodeType) -> set[str]:
    """Returns the globals that code reads, also in the functions that it defines."""
    found = {
        each.argval
        for each in dis.get_instructions(code)
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return found.union(*map(_globals_of, inner))


def _of_cell(cell: types.CellType) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:
        # Not set yet, as in a function that is being defined.
        return
