"""Clients' values that are needed after a pass over the clients.

A later pass or the result needs them. Beyond a limit they are written to a temporary
file, so that memory does not grow with the number of clients.
"""

import os
import tempfile
from collections.abc import Iterable, Sequence

import attrs
import numpy as np
import tensorflow as tf


@attrs.frozen
class _Stored:
    """The location of a tensor in the file."""

    offset: int
    shape: tuple[int, ...]
    dtype: tf.DType


class KeptValues:
    """The values that one run of a pass keeps, in columns of a tensor per client.

    A column's values are freed immediately with the last reference to it: there are no
    reference cycles, which would have to wait for the garbage collector.
    """

    def __init__(self, num_columns: int, max_bytes: int):
        """Initializes empty columns.

        Args:
          num_columns: The number of values per client.
          max_bytes: Memory limit of all columns together.
        """
        store = _Store(max_bytes)
        self.columns = [KeptColumn(store) for _ in range(num_columns)]

    def append(self, tensors: Iterable[tf.Tensor]) -> None:
        """Adds the next client's values."""
        for column, tensor in zip(self.columns, tensors, strict=True):
            column.append(tensor)


class KeptColumn(Sequence[tf.Tensor]):
    """A tensor per client, in the order of the clients."""

    def __init__(self, store: "_Store"):
        self._store = store
        self._held: list[tf.Tensor | _Stored] = []

    def append(self, tensor: tf.Tensor) -> None:
        self._held.append(self._store.hold(tensor))

    def __len__(self) -> int:
        return len(self._held)

    def __getitem__(self, position: int) -> tf.Tensor:
        held = self._held[position]
        return self._store.load(held) if isinstance(held, _Stored) else held


class _Store:
    """The remaining memory, and the file for values that exceed it."""

    def __init__(self, max_bytes: int):
        self._remaining = max_bytes
        self._file = None

    def hold(self, tensor: tf.Tensor) -> tf.Tensor | _Stored:
        """Returns the tensor, or its location in the file."""
        if tensor.dtype in (tf.variant, tf.string, tf.resource):
            return tensor
        num_bytes = tensor.dtype.size * tensor.shape.num_elements()
        if num_bytes <= self._remaining:
            self._remaining -= num_bytes
            return tensor
        if self._file is None:
            # Deleted with this object.
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
        offset = self._file.seek(0, os.SEEK_END)
        self._file.write(tensor.numpy().tobytes())
        self._file.flush()
        return _Stored(offset, tuple(tensor.shape), tensor.dtype)

    def load(self, stored: _Stored) -> tf.Tensor:
        """Returns a tensor from the file; threads may call it concurrently."""
        array = np.empty(stored.shape, stored.dtype.as_numpy_dtype)
        view = memoryview(array.reshape(-1).view(np.uint8))
        done = 0
        while done < len(view):
            done += os.preadv(self._file.fileno(), [view[done:]], stored.offset + done)
        return tf.convert_to_tensor(array)
