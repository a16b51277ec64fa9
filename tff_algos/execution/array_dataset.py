"""Datasets whose elements are parts of arrays in memory.

They are ordinary datasets with little overhead: TensorFlow's dataset is built lazily,
in one call and without user functions or autotuning, which makes the first element
available in a tenth of the usual time. The in-process runtime reads batches of small
models directly from the arrays.
"""

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_algos.execution import data_options

_HOST = "/device:CPU:0"

Arrays = tuple[np.ndarray, ...]


class InMemoryDataset(tf.data.Dataset, abc.ABC):
    """A dataset whose elements are in memory."""

    def __init__(self, element_spec: Any):
        self._element_spec = element_spec
        self._variant: tf.Tensor | None = None
        super().__init__(variant_tensor=None)

    def _inputs(self) -> Sequence[tf.data.Dataset]:
        return []

    @property
    def element_spec(self) -> Any:
        """A structure of `tf.TensorSpec`s."""
        return self._element_spec

    @abc.abstractmethod
    def elements(self) -> tuple[Arrays, ...]:
        """Returns the components of each element."""

    @abc.abstractmethod
    def _stacks(self) -> tuple[list[Arrays], np.ndarray]:
        """Returns stacks of elements of equal shapes, and the stack of each element.

        Components of a stack have a leading axis of elements, in order; the indices of
        the stacks are int64 [number of elements].
        """

    # TensorFlow's representation of a dataset. `functools.cached_property` would share
    # one lock between all datasets on Python 3.11.
    @property
    def _variant_tensor(self) -> tf.Tensor:
        if self._variant is None:
            self._variant = self._build_variant()
        return self._variant

    def _build_variant(self) -> tf.Tensor:
        stacks, choice = self._stacks()
        specs = tf.nest.flatten(self._element_spec)
        build = _variant_function(tuple(specs), len(stacks))
        with tf.init_scope(), tf.device(_HOST):
            flat = [tf.constant(array) for stack in stacks for array in stack]
            return build(tf.constant(choice), *flat)


@functools.lru_cache(maxsize=256)
def _variant_function(
    specs: tuple[tf.TensorSpec, ...], num_stacks: int
) -> tf.types.experimental.ConcreteFunction:
    """Returns a function from `choice` and flat stacks to a dataset's variant.

    One function call is faster than one call per op from Python, because another thread
    may run between ops.

    Args:
      specs: The specs of an element's components.
      num_stacks: The number of stacks, >= 1.
    """

    @tf.function(autograph=False)
    def build(choice, *flat):
        size = len(specs)
        parts = [flat[start : start + size] for start in range(0, len(flat), size)]
        datasets = [tf.data.Dataset.from_tensor_slices(part) for part in parts]
        dataset = datasets[0]
        if num_stacks > 1:
            choices = tf.data.Dataset.from_tensor_slices(choice)
            dataset = tf.data.Dataset.choose_from_datasets(datasets, choices)
        return tf.data.experimental.to_variant(
            dataset.with_options(data_options.plain())
        )

    with tf.init_scope(), tf.device(_HOST):
        return build.get_concrete_function(
            tf.TensorSpec([None], tf.int64),
            *[tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in specs]
            * num_stacks,
        )


class ArrayDataset(InMemoryDataset):
    """Batches of arrays in memory.

    Attributes:
      arrays: The components' arrays with a common first axis.
      rows: The rows of all batches.
      row_splits: Where each batch begins and ends among `rows`.
    """

    def __init__(self, arrays: Any, rows: np.ndarray, row_splits: np.ndarray):
        """Initializes the dataset.

        Args:
          arrays: A structure of arrays with a common first axis of n rows; not copied,
            so they must not be modified.
          rows: int64 [m], the rows of all batches, each in [0, n).
          row_splits: int64 [b + 1], ascending from 0 to m: batch i consists of
            `rows[row_splits[i] : row_splits[i + 1]]`.
        """
        self.rows = np.asarray(rows, np.int64)
        self.row_splits = np.asarray(row_splits, np.int64)
        self.arrays = [np.asarray(array) for array in tf.nest.flatten(arrays)]
        specs = [
            tf.TensorSpec([None, *array.shape[1:]], array.dtype)
            for array in self.arrays
        ]
        super().__init__(tf.nest.pack_sequence_as(arrays, specs))

    def elements(self) -> tuple[Arrays, ...]:
        """Returns the components of each batch."""
        batches = np.split(self.rows, self.row_splits)[1:-1]
        return tuple(tuple(array[rows] for array in self.arrays) for rows in batches)

    def _stacks(self) -> tuple[list[Arrays], np.ndarray]:
        starts, sizes = self.row_splits[:-1], np.diff(self.row_splits)
        if not len(sizes):
            none = np.zeros([0, 0], np.int64)
            return [tuple(array[none] for array in self.arrays)], sizes
        distinct, choice = np.unique(sizes, return_inverse=True)
        stacks = []
        for number, size in enumerate(distinct):
            places = starts[choice == number][:, None] + np.arange(size)
            rows = self.rows[places]
            stacks.append(tuple(array[rows] for array in self.arrays))
        return stacks, choice.astype(np.int64)


class ElementDataset(InMemoryDataset):
    """One element in memory."""

    def __init__(self, element: Any):
        """Initializes the dataset.

        Args:
          element: A structure of arrays or numbers; they determine the element's type.
        """
        self._element = tuple(np.asarray(part) for part in tf.nest.flatten(element))
        specs = [tf.TensorSpec(part.shape, part.dtype) for part in self._element]
        super().__init__(tf.nest.pack_sequence_as(element, specs))

    def elements(self) -> tuple[Arrays, ...]:
        """Returns the components of the element."""
        return (self._element,)

    def _stacks(self) -> tuple[list[Arrays], np.ndarray]:
        return [tuple(part[None] for part in self._element)], np.zeros(1, np.int64)


class _ReadDataset(InMemoryDataset):
    """What another dataset yielded."""

    def __init__(self, dataset: tf.data.Dataset, element_spec: Any):
        """Reads a finite dataset to its end.

        Args:
          dataset: The dataset, whose elements consist of tensors.
          element_spec: What is known of its elements, a structure of `tf.TensorSpec`s.
        """
        super().__init__(element_spec)
        # `object` for strings: NumPy's bytes would lose trailing zeros.
        self._dtypes = [
            spec.dtype.as_numpy_dtype for spec in tf.nest.flatten(element_spec)
        ]
        with tf.init_scope(), tf.device(_HOST):
            self._elements = tuple(
                tuple(map(np.asarray, tf.nest.flatten(each), self._dtypes))
                for each in dataset.as_numpy_iterator()
            )

    def elements(self) -> tuple[Arrays, ...]:
        """Returns the components of each element."""
        return self._elements

    def _stacks(self) -> tuple[list[Arrays], np.ndarray]:
        shapes = [tuple(part.shape for part in each) for each in self._elements]
        groups: dict[tuple, list[Arrays]] = {each: [] for each in shapes}
        for element, each in zip(self._elements, shapes, strict=True):
            groups[each].append(element)
        numbers = {each: number for number, each in enumerate(groups)}
        stacks = [tuple(map(np.stack, zip(*g, strict=True))) for g in groups.values()]
        choice = np.array([numbers[each] for each in shapes], np.int64)
        return stacks or [self._nothing()], choice

    def _nothing(self) -> Arrays:
        specs = tf.nest.flatten(self._element_spec)
        return tuple(
            np.zeros([0, *(size or 0 for size in spec.shape)], dtype)
            for spec, dtype in zip(specs, self._dtypes, strict=True)
        )


class RecipeDataset(InMemoryDataset):
    """A dataset that is made where it is read, from a function and its arguments.

    A worker of the Ray runtime gets these in the place of the elements. What was made
    stays in memory as long as this object: make new ones for each round if the data of
    all clients do not fit.

    Attributes:
      make: The function.
      arguments: Its arguments.
    """

    def __init__(
        self, element_spec: Any, make: Callable[..., tf.data.Dataset], *arguments: Any
    ):
        """Initializes without calling the function.

        Args:
          element_spec: A structure of `tf.TensorSpec`s, of `make`'s result.
          make: Returns the dataset, of tensors and finite; the same elements in every
            process. One that is no `ArrayDataset` is read into memory. A function of a
            module that workers can import.
          *arguments: What it is called with; must be picklable.
        """
        self.make = make
        self.arguments = arguments
        self._made: InMemoryDataset | None = None
        super().__init__(element_spec)

    def made(self) -> InMemoryDataset:
        """Returns the function's result, in memory; the function is called once.

        Raises:
          TypeError: If the result has other elements than `element_spec`.
        """
        if self._made is None:
            # Eagerly, even if a tf.function uses it first: the result outlives its graph.
            with tf.init_scope():
                found = self.make(*self.arguments)
            name = getattr(self.make, "__name__", repr(self.make))
            if not isinstance(found, tf.data.Dataset):
                raise TypeError(
                    f"Expected a tf.data.Dataset of {name}, found {type(found).__name__}."
                )
            expected, given = map(
                tf.nest.flatten, (self.element_spec, found.element_spec)
            )
            if len(expected) != len(given) or not all(
                a.is_compatible_with(b) for a, b in zip(expected, given, strict=True)
            ):
                raise TypeError(
                    f"Expected elements {self.element_spec} of {name}, "
                    f"found {found.element_spec}."
                )
            if any(type(each) is not tf.TensorSpec for each in given):
                raise TypeError(
                    f"Expected tensors of {name}, found {found.element_spec}."
                )
            in_memory = isinstance(found, InMemoryDataset)
            if not in_memory:
                found = _ReadDataset(found, self.element_spec)
            self._made = found
        return self._made

    def elements(self) -> tuple[Arrays, ...]:
        """Returns the components of each element."""
        return self.made().elements()

    def _stacks(self) -> tuple[list[Arrays], np.ndarray]:
        return self.made()._stacks()
