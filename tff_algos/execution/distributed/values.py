"""Values that travel between processes: arrays, and datasets as arrays or graphs."""

import pickle
import socket
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from tff_algos import messages
from tff_algos.execution import client_batches, graph_contents, types
from tff_algos.execution.array_dataset import (
    ArrayDataset,
    ElementDataset,
    RecipeDataset,
)

_HOST = "/device:CPU:0"
# Values of variables and tables go with the graph; positions of random generators and
# shuffles do not.
_IGNORE_STATE = 1
# Ops that call functions by a number that has a meaning in one process alone.
_LOCAL_OPS = frozenset(["EagerPyFunc", "PyFunc", "PyFuncStateless"])
_ADVICE = (
    "give the runtime its batches in memory instead, as "
    "tff_algos.execution.ArrayDataset"
)


class CannotTravelError(ValueError):
    """A value cannot be sent to a worker; the message says what to do."""


class NotReadableError(RuntimeError):
    """A worker cannot make a client's dataset; the message is one line."""


@attrs.frozen(eq=False)
class _Text:
    """A tensor of strings, whose dtype an empty array would not tell."""

    array: Any


@attrs.frozen(eq=False)
class _Batches:
    """An `ArrayDataset`, with the rows that it uses."""

    arrays: tuple[np.ndarray, ...]
    rows: np.ndarray
    row_splits: np.ndarray


@attrs.frozen(eq=False)
class _Element:
    """An `ElementDataset`."""

    parts: tuple[np.ndarray, ...]


@attrs.frozen(eq=False)
class _Recipe:
    """A `RecipeDataset`: its pickled parts."""

    pickled: bytes


@attrs.frozen(eq=False)
class _Graph:
    """The graph of any other dataset, with the tensors in it."""

    graph_def: bytes


def pack(value: tf.Tensor | tf.data.Dataset) -> Any:
    """Returns a value that can be pickled.

    Args:
      value: A tensor or a dataset.

    Raises:
      CannotTravelError: For a dataset that exists in this process alone.
    """
    if isinstance(value, RecipeDataset):
        return _recipe_of(value)
    if isinstance(value, tf.data.Dataset):
        in_arrays = client_batches.in_arrays(value)
        value = value if in_arrays is None else in_arrays
    if isinstance(value, ArrayDataset):
        used, rows = np.unique(value.rows, return_inverse=True)
        arrays = tuple(array[used] for array in value.arrays)
        return _Batches(arrays, rows.reshape(-1), value.row_splits)
    if isinstance(value, ElementDataset):
        return _Element(value.elements()[0])
    if isinstance(value, tf.data.Dataset):
        value = tf.data.experimental.to_variant(value)
    if value.dtype == tf.variant:
        return _Graph(_graph_of(value))
    if value.dtype == tf.string:
        return _Text(value.numpy())
    if value.dtype == tf.resource:
        raise CannotTravelError(f"a resource cannot be sent to a worker: {_ADVICE}")
    return types.as_numpy(value)


def unpack(packed: Any) -> tf.Tensor | tf.data.Dataset:
    """Returns a tensor or a dataset with the same values as the one packed.

    A dataset, unpacked before, is returned unchanged.

    Raises:
      NotReadableError: If a dataset that is made here cannot be made.
    """
    match packed:
        case tf.data.Dataset():
            return packed
        case _Batches():
            return ArrayDataset(packed.arrays, packed.rows, packed.row_splits)
        case _Element():
            return ElementDataset(packed.parts)
        case _Recipe():
            return _made(packed)
        case _Graph():
            with tf.device(_HOST):
                return tf.raw_ops.DatasetFromGraph(graph_def=packed.graph_def)
        case _Text():
            return tf.constant(packed.array, tf.string)
        case _:
            return tf.constant(packed)


def unpack_in_place(packed: Any) -> tf.Tensor | tf.data.Dataset:
    """Returns what `unpack` does; a tensor uses the memory of a read-only array.

    For values that are used up at once: Ray's store cannot free that memory before.
    """
    if isinstance(packed, np.ndarray) and not packed.flags.writeable:
        return types.as_tensor(packed)
    return unpack(packed)


def num_bytes(packed: Any) -> int:
    """Returns about how many bytes a packed value, or a structure of them, takes."""
    match packed:
        case _Batches():
            return num_bytes([*packed.arrays, packed.rows, packed.row_splits])
        case _Element():
            return num_bytes(packed.parts)
        case _Recipe():
            return len(packed.pickled)
        case _Graph():
            return len(packed.graph_def)
        case _Text():
            return sum(map(len, np.ravel(packed.array)))
        case np.ndarray() | np.generic():
            return packed.nbytes
        case list() | tuple():
            return sum(map(num_bytes, packed))
        case _:
            raise TypeError(f"Expected a packed value, found {type(packed)}.")


def pack_all(values: Sequence[Any]) -> list[Any]:
    """Returns the packed values."""
    return [pack(value) for value in values]


def unpack_all(packed: Sequence[Any]) -> list[Any]:
    """Returns the values."""
    return [unpack(each) for each in packed]


def _recipe_of(dataset: RecipeDataset) -> _Recipe:
    make = dataset.make
    try:
        if getattr(make, "__module__", None) == "__main__":
            raise AttributeError("it is of the program's main module")
        parts = (dataset.element_spec, make, dataset.arguments)
        return _Recipe(pickle.dumps(parts, protocol=pickle.HIGHEST_PROTOCOL))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise CannotTravelError(
            f"the function that makes its dataset cannot be sent to a worker "
            f"({messages.one_line(error)}): move it to the top level of a module that "
            "workers can import, and give it arguments that can be pickled"
        ) from error


def _made(recipe: _Recipe) -> tf.data.Dataset:
    try:
        spec, make, arguments = pickle.loads(recipe.pickled)
        return RecipeDataset(spec, make, *arguments).made()
    except Exception as error:  # Whatever a user's function raises.
        raise NotReadableError(
            f"its data cannot be read at the worker on {socket.gethostname()} "
            f"({messages.one_line(error)})"
        ) from error


def _graph_of(variant: tf.Tensor) -> bytes:
    try:
        with tf.device(_HOST):
            graph = tf.raw_ops.DatasetToGraphV2(
                input_dataset=variant, external_state_policy=_IGNORE_STATE
            )
    except tf.errors.OpError as error:
        raise CannotTravelError(
            f"the dataset cannot be sent to a worker ({messages.one_line(error)}): "
            f"{_ADVICE}"
        ) from error
    serialized = graph.numpy()
    definition = tf.compat.v1.GraphDef.FromString(serialized)
    if any(node.op in _LOCAL_OPS for node in graph_contents.all_nodes(definition)):
        raise CannotTravelError(
            "the dataset cannot be sent to a worker (it calls Python functions of "
            f"this process): {_ADVICE}"
        )
    return serialized
