"""Clients' datasets as batches in memory.

Reading a dataset takes milliseconds before the first element, more than a step of a
small model. Batches of datasets that yield the same elements every time are cached
within a memory budget.
"""

import collections
import itertools
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from tff_algos.execution import data_options
from tff_algos.execution.array_dataset import (
    ArrayDataset,
    ElementDataset,
    InMemoryDataset,
)

Batch = tuple[tf.Tensor | np.ndarray, ...]

_HOST = "/device:CPU:0"
# How much of a dataset is read before it is known how much is needed.
_MOST_ELEMENTS, _MOST_BYTES = 1024, 2**24

# Dataset types without randomness, if their functions are stateless.
_REPEATABLE = frozenset(
    [
        "ArrayDataset",
        "_BatchDataset",
        "CacheDataset",
        "_ConcatenateDataset",
        "ElementDataset",
        "_FilterDataset",
        "_FlatMapDataset",
        "_MapDataset",
        "_OptionsDataset",
        "_PaddedBatchDataset",
        "_ParallelBatchDataset",
        "_ParallelMapDataset",
        "_PrefetchDataset",
        "_RangeDataset",
        "_ReadDataset",
        "RecipeDataset",
        "_RepeatDataset",
        "_ShardDataset",
        "_SkipDataset",
        "_TakeDataset",
        "_TakeWhileDataset",
        "_TensorDataset",
        "_TensorSliceDataset",
        "_UnbatchDataset",
        "_ZipDataset",
    ]
)


# All iterators of one such dataset may draw from the same generator of random numbers.
_DRAWING = frozenset(["_RandomDataset", "_ShuffleAndRepeatDataset", "_ShuffleDataset"])

# Not stateful to TensorFlow, although files may change.
_OF_FILES = frozenset(["ReadFile", "MatchingFiles"])
_OF_PYTHON = frozenset(["EagerPyFunc", "PyFunc", "PyFuncStateless"])


@attrs.frozen(eq=False)
class ClientBatches:
    """All batches of one client.

    Attributes:
      batches: The components of each batch, tensors or arrays.
      shapes: For each batch, the shapes of its components.
      num_bytes: The memory of the batches.
    """

    batches: tuple[Batch, ...]
    shapes: tuple[tuple[tuple[int, ...], ...], ...]
    num_bytes: int


def read(variant: tf.Tensor, specs: Sequence[tf.TensorSpec]) -> ClientBatches:
    """Reads a whole dataset.

    Args:
      variant: The dataset's variant tensor.
      specs: The specs of an element's components.

    Returns:
      The dataset's elements.
    """
    dataset = tf.data.experimental.from_variant(variant, tuple(specs))
    with tf.device(_HOST):
        return _described(tuple(dataset.with_options(data_options.plain())))


def _described(batches: tuple[Batch, ...]) -> ClientBatches:
    return ClientBatches(
        batches,
        tuple(tuple(tuple(part.shape) for part in batch) for batch in batches),
        sum(_num_bytes(part) for batch in batches for part in batch),
    )


def _num_bytes(part: tf.Tensor | np.ndarray) -> int:
    if isinstance(part, np.ndarray):
        return part.nbytes
    return part.shape.num_elements() * part.dtype.size


def _in_memory(dataset: tf.data.Dataset) -> tuple[Batch, ...] | None:
    """Returns the batches of arrays that were sliced, batched and possibly repeated.

    Reads the arrays directly, in a tenth of the dataset's time; also supports datasets
    of one element. Returns `None` for other datasets.
    """
    if isinstance(dataset, InMemoryDataset):
        return dataset.elements()
    kind = type(dataset).__name__
    if kind == "_TensorDataset" and _of_tensors(dataset):
        return (tuple(dataset._tensors),)
    if kind == "_RepeatDataset":
        count = int(dataset._count)
        batches = _in_memory(dataset._input_dataset)
        return None if batches is None or count < 0 else batches * count
    if kind != "_BatchDataset":
        return None
    source = dataset._input_dataset
    if type(source).__name__ != "_TensorSliceDataset" or not _of_tensors(source):
        return None
    size = int(dataset._batch_size)
    num_elements = int(source._tensors[0].shape[0])
    last = size - 1 if bool(dataset._drop_remainder) else 0
    return tuple(
        tuple(tensor[start : start + size] for tensor in source._tensors)
        for start in range(0, num_elements - last, size)
    )


def in_arrays(dataset: tf.data.Dataset) -> InMemoryDataset | None:
    """Returns an equal dataset of arrays, for those that `_in_memory` reads.

    The dataset is one of numbers; `None` for others.
    """
    if isinstance(dataset, InMemoryDataset):
        return dataset
    kind = type(dataset).__name__
    if kind == "_RepeatDataset":
        once = in_arrays(dataset._input_dataset)
        count = int(dataset._count)
        if not isinstance(once, ArrayDataset) or count < 0:
            return None
        sizes = np.tile(np.diff(once.row_splits), count)
        splits = np.append(0, np.cumsum(sizes))
        return ArrayDataset(tuple(once.arrays), np.tile(once.rows, count), splits)
    if kind == "_TensorDataset" and _of_numbers(dataset):
        return ElementDataset(tuple(tensor.numpy() for tensor in dataset._tensors))
    if kind != "_BatchDataset":
        return None
    source = dataset._input_dataset
    if type(source).__name__ != "_TensorSliceDataset" or not _of_numbers(source):
        return None
    arrays = tuple(tensor.numpy() for tensor in source._tensors)
    size, num_elements = int(dataset._batch_size), len(arrays[0])
    if bool(dataset._drop_remainder):
        num_elements -= num_elements % size
    splits = np.append(np.arange(0, num_elements, size), num_elements)
    return ArrayDataset(arrays, np.arange(num_elements), splits)


def _of_numbers(dataset: tf.data.Dataset) -> bool:
    return _of_tensors(dataset) and all(
        tensor.dtype != tf.string for tensor in dataset._tensors
    )


def _of_tensors(dataset: tf.data.Dataset) -> bool:
    specs = tf.nest.flatten(dataset.element_spec)
    return all(type(spec) is tf.TensorSpec for spec in specs)


def is_repeatable(dataset: tf.data.Dataset) -> bool:
    """Returns whether every iteration is known to yield the same elements."""
    return all(
        type(source).__name__ in _REPEATABLE
        and not any(_reads_elsewhere(each.function) for each in source._functions())
        for source in _sources([dataset])
    )


def _reads_elsewhere(function: tf.types.experimental.ConcreteFunction) -> bool:
    """Returns whether a function's results depend on more than its arguments."""
    # A dataset that it captured may be one that shuffles.
    if any(tensor.dtype == tf.variant for tensor in function.captured_inputs):
        return True
    return function.function_def.signature.is_stateful or _calls(function, _OF_FILES)


def _calls(
    function: tf.types.experimental.ConcreteFunction, ops: Collection[str]
) -> bool:
    """Returns whether a function or one that it calls has any of some ops."""
    graph = function.graph
    graphs = [graph, *(each.graph for each in graph._functions.values())]
    return any(op.type in ops for each in graphs for op in each.get_operations())


def may_be_spent(dataset: tf.data.Dataset | tf.Tensor) -> bool:
    """Returns whether a dataset runs Python code, which may yield its elements only once.

    A variant does not tell; the answer is then no.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return False
    return any(
        _calls(each.function, _OF_PYTHON)
        for source in _sources([dataset])
        for each in source._functions()
    )


def share_state(clients: Iterable[Iterable[tf.data.Dataset]]) -> bool:
    """Returns whether one client's reading changes in which order another reads.

    It does if their datasets are parts of one that is shuffled with a seed, anew in every
    iteration.

    Args:
      clients: The datasets of each client.
    """
    seen: set[int] = set()
    for datasets in clients:
        own = {id(each) for each in _sources(datasets) if _draws_anew(each)}
        if not seen.isdisjoint(own):
            return True
        seen |= own
    return False


def _sources(datasets: Iterable[tf.data.Dataset]) -> Iterator[tf.data.Dataset]:
    """Yields datasets and all that they are made from, each once."""
    left, seen = list(datasets), set()
    while left:
        dataset = left.pop()
        if id(dataset) not in seen:
            seen.add(id(dataset))
            left += dataset._inputs()
            yield dataset


def _draws_anew(dataset: tf.data.Dataset) -> bool:
    """Returns whether every iteration goes on with the draws of a seed."""
    if type(dataset).__name__ not in _DRAWING:
        return False
    # Unless told otherwise, shuffles draw anew and random numbers do not.
    reshuffles = getattr(dataset, "_reshuffle_each_iteration", None) is not False
    rerandomizes = bool(getattr(dataset, "_rerandomize", True))
    # Without a seed, both are 0, and no order can be repeated.
    is_seeded = bool(dataset._seed or dataset._seed2)
    return is_seeded and reshuffles and rerandomizes


def has_captured_state(dataset: tf.data.Dataset) -> bool:
    """Returns whether a function of a dataset uses a resource or another dataset.

    Such as a variable or a generator of random numbers, which other clients may share.
    """
    return any(
        tensor.dtype in (tf.resource, tf.variant)
        for source in _sources([dataset])
        for each in source._functions()
        for tensor in each.function.captured_inputs
    )


class Beginning:
    """The first elements of a dataset that may yield its elements only once.

    The dataset may be infinite, and work may need only some of its elements.
    """

    def __init__(self, dataset: tf.data.Dataset):
        """Reads the first elements."""
        self._dataset = dataset
        with tf.device(_HOST):
            self._iterator = iter(dataset.with_options(data_options.plain()))
        self._batches: list[Batch] = []
        self._has_ended = False
        self._error: tf.errors.OpError | None = None
        # In a list: TensorFlow never frees what a generator refers to.
        self._fell_short = [False]
        self._read(_MOST_ELEMENTS, _MOST_BYTES)

    @property
    def fell_short(self) -> bool:
        """Whether the last `dataset` ended before the dataset itself does."""
        return self._fell_short[0]

    def read_on(self) -> None:
        """Doubles what was read.

        Raises:
          tf.errors.OpError: If reading failed.
        """
        if self._error is None:
            self._read(len(self._batches) or 1, self.batches.num_bytes)
        if self._error is not None:
            raise self._error

    def _read(self, num_elements: int, num_bytes: int) -> None:
        for _ in range(num_elements):
            try:
                element = next(self._iterator, None)
            except tf.errors.OpError as error:  # Work may not need this element.
                self._error = error
                return
            if element is None:
                self._has_ended = True
                return
            batch = tuple(tf.nest.flatten(element))
            self._batches.append(batch)
            num_bytes -= sum(map(_num_bytes, batch))
            if num_bytes < 0:
                return

    @property
    def batches(self) -> ClientBatches:
        """What was read."""
        return _described(tuple(self._batches))

    def dataset(self) -> tf.data.Dataset:
        """Returns a dataset of what was read, which sets `fell_short` at its end."""
        self._fell_short = fell_short = [False]
        read = as_dataset(self.batches, self._dataset)
        if self._has_ended:
            return read

        def end():
            fell_short[0] = True
            yield from ()

        spec = self._dataset.element_spec
        return read.concatenate(
            tf.data.Dataset.from_generator(end, output_signature=spec)
        )


def as_dataset(read: ClientBatches, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset of the batches that were read from `dataset`."""
    described = zip(read.shapes, read.batches, strict=True)
    elements = [
        _of_one_shape([batch for _, batch in group], dataset.element_spec)
        for _, group in itertools.groupby(described, key=lambda each: each[0])
    ]
    nothing = dataset.take(0)
    # In pairs: iterators nest as deep as datasets.
    while len(elements) > 1:
        pairs = itertools.zip_longest(elements[::2], elements[1::2], fillvalue=nothing)
        elements = [first.concatenate(second) for first, second in pairs]
    return nothing.concatenate(*elements) if elements else nothing


def _call_if_alive(method: weakref.WeakMethod, key: int) -> None:
    found = method()
    if found is not None:
        found(key)


def _of_one_shape(batches: Sequence[Batch], element_spec: Any) -> tf.data.Dataset:
    """Returns a dataset of batches that can be stacked."""
    with tf.device(_HOST):
        stacked = [tf.stack(parts) for parts in zip(*batches, strict=True)]
    return tf.data.Dataset.from_tensor_slices(
        tf.nest.pack_sequence_as(element_spec, stacked)
    )


class BatchCache:
    """A cache of datasets' batches within a budget; evicts the least recently used."""

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: collections.OrderedDict = collections.OrderedDict()
        self._finalizers: dict[int, weakref.finalize] = {}
        # Reentrant: garbage collection may forget datasets while the lock is held.
        self._lock = threading.RLock()

    def read(
        self, data: tf.data.Dataset | tf.Tensor, specs: Sequence[tf.TensorSpec]
    ) -> ClientBatches:
        """Returns the batches of a dataset, from the cache if possible.

        Args:
          data: The dataset, or its variant, which is never cached.
          specs: The specs of an element's components.
        """
        if not isinstance(data, tf.data.Dataset):
            return read(data, specs)
        batches = self.get(data)
        if batches is None:
            with tf.device(_HOST):
                in_memory = _in_memory(data)
            if in_memory is None:
                batches = read(tf.data.experimental.to_variant(data), specs)
            else:
                batches = _described(in_memory)
            self.put(data, batches)
        return batches

    def get(self, dataset: tf.data.Dataset | tf.Tensor) -> ClientBatches | None:
        """Returns the cached batches of a dataset, or `None`."""
        key = id(dataset)
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key]

    def put(self, dataset: tf.data.Dataset, data: ClientBatches) -> None:
        """Caches batches for the dataset's lifetime, if the budget allows.

        Args:
          dataset: The dataset; ignored unless repeatable.
          data: The batches.
        """
        if data.num_bytes > self._max_bytes or not is_repeatable(dataset):
            return
        key = id(dataset)
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = data
            self._num_bytes += data.num_bytes
            # A bound method would keep the cache alive as long as any dataset.
            forget = weakref.WeakMethod(self._forget)
            finalizer = weakref.finalize(dataset, _call_if_alive, forget, key)
            finalizer.atexit = False
            self._finalizers[key] = finalizer
            while self._num_bytes > self._max_bytes:
                oldest, dropped = self._entries.popitem(last=False)
                self._num_bytes -= dropped.num_bytes
                self._finalizers.pop(oldest).detach()

    @property
    def num_bytes(self) -> int:
        """The memory in use."""
        return self._num_bytes

    def _forget(self, key: int) -> None:
        with self._lock:
            dropped = self._entries.pop(key, None)
            if dropped is not None:
                self._num_bytes -= dropped.num_bytes
                self._finalizers.pop(key)
