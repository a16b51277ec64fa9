"""Clients' datasets that stay at a worker, so that they are sent once.

The driver numbers datasets and tells a worker to keep each, then sends the number alone.
What the driver believes a worker to have may be wrong, because a worker drops what
exceeds its memory and calls may be cancelled: the worker then names what is missing, and
the driver sends it again.
"""

import collections
import itertools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import tensorflow as tf

from tff_algos.execution import client_batches
from tff_algos.execution.array_dataset import RecipeDataset
from tff_algos.execution.distributed import values

# Less is sent every time; a number saves nothing.
_MIN_BYTES = 1 << 10

# For all contexts that call the same workers.
_keys = itertools.count()


@attrs.frozen
class Keep:
    """A packed dataset to keep.

    Attributes:
      key: Its number.
      packed: The result of `values.pack`.
    """

    key: int
    packed: Any


@attrs.frozen
class Kept:
    """A dataset that the worker keeps.

    Attributes:
      key: Its number.
    """

    key: int


def num_bytes(sent: Iterable[Any]) -> int:
    """Returns about how many bytes values, to be kept or not, take."""
    total = 0
    for each in sent:
        match each:
            case Keep():
                total += 8 + values.num_bytes(each.packed)
            case Kept():
                total += 8
            case _:
                total += values.num_bytes(each)
    return total


class Directory:
    """What each worker keeps, as far as the driver knows; used by one pass at a time."""

    def __init__(self):
        self._keys: weakref.WeakKeyDictionary[tf.data.Dataset, int]
        self._keys = weakref.WeakKeyDictionary()
        self._kept: collections.defaultdict[int, set[int]]
        self._kept = collections.defaultdict(set)
        self._to_drop: collections.defaultdict[int, list[int]]
        self._to_drop = collections.defaultdict(list)
        # The garbage collector appends, in any thread.
        self._freed: collections.deque[int] = collections.deque()

    def pack(self, value: tf.Tensor | tf.data.Dataset, worker: int) -> Any:
        """Returns what to send of a client's value.

        Args:
          value: The value.
          worker: The number of the worker that it is sent to.

        Raises:
          values.CannotTravelError: If it cannot be sent.
        """
        if not isinstance(value, tf.data.Dataset) or isinstance(value, RecipeDataset):
            return values.pack(value)
        key = self._keys.get(value)
        if key in self._kept[worker]:
            return Kept(key)
        packed = values.pack(value)
        # Another one yields other elements when it is read again.
        repeats = client_batches.is_repeatable(value)
        if not repeats or values.num_bytes(packed) < _MIN_BYTES:
            return packed
        if key is None:
            key = self._keys[value] = next(_keys)
            weakref.finalize(value, self._freed.append, key).atexit = False
        self._kept[worker].add(key)
        return Keep(key, packed)

    def forget(self, worker: int, keys: Iterable[int] | None = None) -> None:
        """Takes note of what a worker does not have any more: all of it by default."""
        if keys is None:
            self._kept.pop(worker, None)
            self._to_drop.pop(worker, None)
        else:
            self._kept[worker].difference_update(keys)

    def to_drop(self, worker: int) -> list[int]:
        """Returns, once, the keys of a worker's datasets that nobody uses any more."""
        while self._freed:
            key = self._freed.popleft()
            for number, kept in self._kept.items():
                if key in kept:
                    kept.remove(key)
                    self._to_drop[number].append(key)
        return self._to_drop.pop(worker, [])


class Store:
    """What a worker keeps within a budget; drops the least recently used."""

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: collections.OrderedDict[int, tuple[tf.data.Dataset, int]]
        self._entries = collections.OrderedDict()

    def missing(self, sent: Iterable[Any]) -> list[int]:
        """Returns the keys among sent values that are expected here but absent."""
        found = []
        coming = set()
        for value in sent:
            match value:
                case Keep():
                    coming.add(value.key)
                case Kept() if (
                    value.key not in coming and value.key not in self._entries
                ):
                    found.append(value.key)
        return found

    def keep(self, sent: Iterable[Any]) -> None:
        """Keeps the datasets that are to be kept, and opens nothing else."""
        self.opened([value for value in sent if isinstance(value, Keep)])

    def opened(self, sent: Sequence[Any]) -> list[Any]:
        """Returns values with datasets in the place of those kept or to keep.

        Args:
          sent: Values of which none is missing.
        """
        return [self._opened(value) for value in sent]

    def _opened(self, value: Any) -> Any:
        match value:
            case Keep():
                dataset = values.unpack(value.packed)
                size = values.num_bytes(value.packed)
                self.drop([value.key])
                self._entries[value.key] = dataset, size
                self._num_bytes += size
                return dataset
            case Kept():
                self._entries.move_to_end(value.key)
                return self._entries[value.key][0]
            case _:
                return value

    def drop(self, keys: Iterable[int]) -> None:
        """Drops datasets, if they are kept."""
        for key in keys:
            _, size = self._entries.pop(key, (None, 0))
            self._num_bytes -= size

    def evict(self) -> list[int]:
        """Drops what exceeds the budget; returns its keys."""
        evicted = []
        while self._num_bytes > self._max_bytes:
            key = next(iter(self._entries))
            self.drop([key])
            evicted.append(key)
        return evicted
