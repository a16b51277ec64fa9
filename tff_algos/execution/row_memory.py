"""Memory for rows of all clients, reused across rounds.

The rows of a hundred clients can take half a gigabyte. If it were returned to the
system after every round, the next round would have to allocate and clear its pages
again; on a virtual machine that returns free memory to its host, this takes several
times as long as all other work on the rows.
"""

import math
import threading
import weakref
from collections.abc import Sequence

import attrs
import numpy as np

# The alignment in bytes that TensorFlow's kernels rely on.
_ALIGNMENT = 64


@attrs.frozen(eq=False)
class _Block:
    memory: np.ndarray
    user: weakref.ref

    def is_free(self) -> bool:
        return self.user() is None


class RowMemory:
    """Arrays whose memory is reused once they are no longer referenced.

    It never holds more than the largest amount in use at once: a new block replaces
    free ones.
    """

    def __init__(self):
        """Initializes without memory."""
        self._blocks: list[_Block] = []
        self._most_used = 0
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """The memory held, in use or free."""
        return _num_bytes(self._blocks)

    def take(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Returns an uninitialized array.

        Its memory is in use as long as this array object is referenced, for example by
        tensors created from it by DLPack; NumPy views do not reference it. Threads may
        call this concurrently.

        Args:
          shape: The shape of the array.
          dtype: The dtype of the array; not `object`.
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
        """Takes the smallest free block with `size` to twice `size` bytes."""
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
        """Frees unused blocks, oldest first."""
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
