"""Memory for rows of all clients, which one round leaves to the next.

The rows of a hundred clients can be half a gigabyte. Were it given back to the system
after every round, the next one would have its pages found and cleared again while its
clients train; on a virtual machine that passes free memory on to its host this takes
several times as long as everything else that is done with the rows.
"""

import math
import threading
import weakref
from collections.abc import Sequence

import attrs
import numpy as np

# Of memory, in bytes, that TensorFlow's kernels rely on.
_ALIGNMENT = 64


@attrs.frozen(eq=False)
class _Block:
    memory: np.ndarray
    user: weakref.ref

    def is_free(self) -> bool:
        return self.user() is None


class RowMemory:
    """Arrays whose memory is used again when nothing needs them any more.

    It never holds more than was used at one time: a new block takes the place of free
    ones.
    """

    def __init__(self):
        """Holds nothing yet."""
        self._blocks: list[_Block] = []
        self._most_used = 0
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Memory that is held, in use or free."""
        return _num_bytes(self._blocks)

    def take(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Returns an array whose elements are arbitrary.

        It is in use as long as anything refers to this very array, as tensors made of
        it by DLPack do. NumPy's views of it do not. Several threads may call it at once.

        Args:
          shape: Of the array.
          dtype: Of its elements, which are no Python objects.
        """
        size = math.prod(shape) * dtype.itemsize
        with self._lock:
            memory = self._take_free(size)
            if memory is None:
                self._make_room(size)
                memory = _aligned_memory(size)
            array = memory[:size].view(dtype).reshape(shape)
            self._blocks.append(_Block(memory, weakref.ref(array)))
        return array

    def _take_free(self, size: int) -> np.ndarray | None:
        """Takes the smallest free block of at least `size`, less than half unused."""
        fitting = [
            block
            for block in self._blocks
            if size <= block.memory.size <= 2 * size and block.is_free()
        ]
        if not fitting:
            return None
        found = min(fitting, key=lambda block: block.memory.size)
        self._blocks.remove(found)
        return found.memory

    def _make_room(self, size: int) -> None:
        """Lets go of free blocks, those that were taken longest ago first."""
        free = [block for block in self._blocks if block.is_free()]
        used = _num_bytes(self._blocks) - _num_bytes(free)
        self._most_used = max(self._most_used, used + size)
        while free and _num_bytes(self._blocks) + size > self._most_used:
            self._blocks.remove(free.pop(0))


def _num_bytes(blocks: Sequence[_Block]) -> int:
    return sum(block.memory.size for block in blocks)


def _aligned_memory(size: int) -> np.ndarray:
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]
