"""TFF types as flat lists of tensors, and Python values of these types.

Inside the runtime, a value is a flat sequence of tensors, one for each tensor or
sequence in its type, in the order of the type. A sequence is the variant tensor of a
dataset.
"""

import collections
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import ops
from tensorflow_federated.python.common_libs import py_typecheck, structure
from tensorflow_federated.python.core.impl.compiler import array
from tensorflow_federated.python.core.impl.executors import value_serialization
from tensorflow_federated.python.core.impl.types import type_conversions
from tensorflow_federated.python.core.impl.utils import tensorflow_utils

from tff_algos import messages

# Arrays of at least this size are views of tensors.
_LEAST_VIEW_BYTES = 1 << 20
_CPU = "CPU:0"
_BFLOAT16 = np.dtype(tf.bfloat16.as_numpy_dtype)


def flatten(type_spec: tff.Type | None) -> Iterator[tff.Type]:
    """Yields the tensor and sequence types in an unplaced type.

    Raises:
      TypeError: For functional and federated types.
    """
    match type_spec:
        case None:
            return
        case tff.TensorType() | tff.SequenceType():
            yield type_spec
        case tff.StructType():
            for _, element in structure.iter_elements(type_spec):
                yield from flatten(element)
        case _:
            raise TypeError(f"Expected tensors and sequences, found {type_spec}.")


def tensor_spec(type_spec: tff.Type) -> tf.TensorSpec:
    """Returns the spec of the tensor that represents a tensor or a sequence."""
    if isinstance(type_spec, tff.SequenceType):
        return tf.TensorSpec([], tf.variant)
    shape = None if type_spec.shape is None else list(type_spec.shape)
    return tf.TensorSpec(shape, type_spec.dtype.type)


class Embedder:
    """Embeds many values, checking each dataset and each kind of element once."""

    def __init__(self):
        self._specs: dict[tff.SequenceType, Any] = {}
        self._types: weakref.WeakKeyDictionary[tf.data.Dataset, tff.SequenceType]
        self._types = weakref.WeakKeyDictionary()

    def __call__(
        self, value: Any, type_spec: tff.Type
    ) -> list[tf.Tensor | tf.data.Dataset]:
        """Returns the tensors of `embed`, with sequences as datasets."""
        return list(embed(value, type_spec, self._embed_sequence))

    def _embed_sequence(
        self, value: Any, type_spec: tff.SequenceType
    ) -> tf.data.Dataset:
        if not isinstance(value, tf.data.Dataset):
            return as_dataset(value, type_spec)
        if self._types.get(value) is type_spec:
            return value
        if value.element_spec != self._specs.get(type_spec):
            as_dataset(value, type_spec)
            self._specs[type_spec] = value.element_spec
        self._types[value] = type_spec
        return value


def _variant(value: Any, type_spec: tff.SequenceType) -> tf.Tensor:
    return tf.data.experimental.to_variant(as_dataset(value, type_spec))


def embed(
    value: Any,
    type_spec: tff.Type,
    embed_sequence: Callable[[Any, tff.SequenceType], Any] = _variant,
) -> Iterator[Any]:
    """Yields the tensors of a Python value of an unplaced type.

    Args:
      value: A value that TFF accepts for the type: NumPy arrays and Python scalars,
        datasets or lists of elements, any container with matching names.
      type_spec: The type.
      embed_sequence: Converts a sequence to a tensor or a substitute for it.

    Raises:
      TypeError: If the value is not of that type.
    """
    match type_spec:
        case tff.TensorType():
            yield _embed_tensor(value, type_spec)
        case tff.SequenceType():
            yield embed_sequence(value, type_spec)
        case tff.StructType():
            for element, element_type in _elements(value, type_spec):
                yield from embed(element, element_type, embed_sequence)
        case _:
            raise TypeError(f"Expected a value, found an argument of type {type_spec}.")


def _embed_tensor(value: Any, type_spec: tff.TensorType) -> tf.Tensor:
    dtype = type_spec.dtype.type
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        value = _as_array(value, type_spec)
    if not array.is_compatible_shape(value, type_spec.shape):
        raise TypeError(
            f"Expected a value of type {type_spec}, found shape {np.shape(value)}."
        )
    if not array.is_compatible_dtype(value, dtype):
        found = getattr(value, "dtype", type(value).__name__)
        raise TypeError(f"Expected a value of type {type_spec}, found {found}.")
    if is_view(value) and value.dtype == dtype:
        return as_tensor(value)
    return tf.constant(value, dtype)


def _as_array(values: Sequence[Any], type_spec: tff.TensorType) -> np.ndarray:
    """Returns a list as an array of a tensor's dtype.

    Raises:
      TypeError: If the dtype cannot hold the values; rounding of floats is allowed.
    """
    dtype = np.dtype(type_spec.dtype.type)
    if dtype.kind == "U":
        return _as_strings(values, type_spec)
    try:
        given = np.asarray(values)
        if dtype.kind not in "biufc" or given.size == 0:
            return np.asarray(values, dtype)
        with np.errstate(over="ignore"):
            found = given.astype(dtype, casting="same_kind")
    except (ValueError, TypeError) as error:  # Ragged, or of another kind.
        raise _unexpected(values, type_spec) from error
    kept = found == given if dtype.kind in "iu" else np.isinf(found) == np.isinf(given)
    if not np.all(kept):
        raise _unexpected(values, type_spec)
    return found


def _as_strings(values: Sequence[Any], type_spec: tff.TensorType) -> np.ndarray:
    """Returns texts or bytes, which NumPy's own dtypes would convert, as objects."""
    try:
        found = np.array(values, object)
    except ValueError as error:  # Arrays of different shapes.
        raise _unexpected(values, type_spec) from error
    if not all(isinstance(each, str | bytes) for each in found.flat):
        raise _unexpected(values, type_spec)
    return found


def _unexpected(values: Sequence[Any], type_spec: tff.TensorType) -> TypeError:
    return TypeError(
        f"Expected a value of type {type_spec}, found {messages.shown(values)}."
    )


def as_tensor(array: np.ndarray) -> tf.Tensor:
    """Returns a tensor in the memory of an array, which must not change any more.

    `tf.constant` would copy it.
    """
    if array.dtype == _BFLOAT16:
        with tf.device(_CPU):  # A GPU has the op too.
            return tf.bitcast(as_tensor(array.view(np.uint16)), tf.bfloat16)
    device = eager_context.context().device_name
    return ops.EagerTensor(array, device, tf.as_dtype(array.dtype).as_datatype_enum)


def as_numpy(tensor: tf.Tensor) -> Any:
    """Returns a tensor's value; of a large tensor a read-only view of its memory.

    A table of clients' updates is larger than all else in a round, and would otherwise
    be copied from every result and into every argument.
    """
    dtype = np.dtype(tensor.dtype.as_numpy_dtype)
    size = tensor.dtype.size * (tensor.shape.num_elements() or 0)
    if size < _LEAST_VIEW_BYTES or not tensor.device.endswith(_CPU):
        return tensor.numpy()
    if dtype == _BFLOAT16:  # Python's buffers have no such numbers.
        with tf.device(_CPU):
            bits = tf.bitcast(tensor, tf.uint16)
        return np.asarray(memoryview(bits)).view(_BFLOAT16)
    return np.asarray(memoryview(tensor)) if dtype.kind in "biufc" else tensor.numpy()


def is_view(value: Any) -> bool:
    """Returns whether a value is a view by `as_numpy`, which nothing can change."""
    if not isinstance(value, np.ndarray) or value.flags.writeable:
        return False
    base = value.base
    if value.dtype == _BFLOAT16 and isinstance(base, np.ndarray):
        is_whole = value.shape == base.shape and value.strides == base.strides
        base = base.base if is_whole else None
    return isinstance(base, memoryview) and base.readonly


def as_dataset(value: Any, type_spec: tff.SequenceType) -> tf.data.Dataset:
    """Returns a sequence, which may be a list of elements, as a dataset.

    Raises:
      TypeError: If the elements are not of the sequence's type.
    """
    if isinstance(value, list):
        value = tensorflow_utils.make_data_set_from_elements(
            None, value, type_spec.element
        )
    if not isinstance(value, tf.data.Dataset):
        raise TypeError(
            f"Expected a dataset or a list for {type_spec}, found {type(value)}."
        )
    element = tff.types.tensorflow_to_type(value.element_spec)
    value_serialization._check_container_compat_with_tf_nest(element)
    if not type_spec.is_assignable_from(tff.SequenceType(element)):
        raise TypeError(
            f"Expected a dataset of type {type_spec}, found one of "
            f"{tff.SequenceType(element)}."
        )
    return value


def _elements(value: Any, type_spec: tff.StructType) -> Iterator[tuple[Any, tff.Type]]:
    """Yields the elements of a struct with their types, checking their names."""
    if isinstance(value, tf.data.Dataset):
        names = ", ".join(structure.name_list(type_spec)) or "elements"
        raise TypeError(f"Expected {names} of {type_spec}, found a dataset.")
    # States contain many empty tuples, and TFF is slow to tell that they have no names.
    if type(value) in (list, tuple):
        elements = [(None, element) for element in value]
    else:
        elements = structure.to_elements(structure.from_container(value))
    expected = structure.to_elements(type_spec)
    if len(elements) != len(expected):
        raise TypeError(
            f"Expected {len(expected)} elements for {type_spec}, found {len(elements)}."
        )
    for (name, element), (expected_name, element_type) in zip(
        elements, expected, strict=True
    ):
        if None not in (name, expected_name) and name != expected_name:
            raise TypeError(
                f"Expected an element {expected_name!r} of {type_spec}, found {name!r}."
            )
        yield element, element_type


def extract(tensors: Iterator[tf.Tensor], type_spec: tff.Type) -> Any:
    """Returns the Python value of an unplaced type, given its tensors.

    Args:
      tensors: Yields the tensors of the type, in order, and possibly more.
      type_spec: The type.

    Returns:
      NumPy values, and datasets for sequences, in `tff.structure.Struct`s. Arrays of a
      megabyte or more are read-only.
    """
    match type_spec:
        case tff.TensorType():
            return as_numpy(next(tensors))
        case tff.SequenceType():
            spec = type_conversions.type_to_tf_structure(type_spec.element)
            return tf.data.experimental.from_variant(next(tensors), spec)
        case _:
            return structure.Struct(
                [
                    (name, extract(tensors, element))
                    for name, element in structure.iter_elements(type_spec)
                ]
            )


def containers(type_spec: tff.Type) -> Callable[[Any], Any]:
    """Returns `tff.types.type_to_py_container` for values of a type.

    TFF's function examines the type for every value, which takes as long as a step of a
    small model; this one does it here.

    Args:
      type_spec: The type of a computation's result.

    Returns:
      The function from `tff.structure.Struct`s to the type's Python containers.
    """
    match type_spec:
        case tff.FederatedType(all_equal=False):
            convert = containers(type_spec.member)
            return lambda values: [convert(value) for value in values]
        case tff.FederatedType():
            return containers(type_spec.member)
        case tff.StructType():
            pack = _container(type_spec)
            elements = [
                containers(element) for _, element in structure.iter_elements(type_spec)
            ]
            return lambda value: pack(
                [convert(each) for convert, each in zip(elements, value, strict=True)]
            )
        case _:
            return lambda value: value


def _container(type_spec: tff.StructType) -> Callable[[Sequence[Any]], Any]:
    """Returns the function from a struct's elements to its Python container."""
    names = structure.name_list_with_nones(type_spec)
    kind = type_spec.python_container
    if kind in (None, list, tuple) and not any(names):
        return kind or tuple
    if kind in (None, dict, collections.OrderedDict) and all(names):
        named = kind or collections.OrderedDict
        return lambda values: named(zip(names, values, strict=True))
    if all(names) and (
        isinstance(kind, py_typecheck.SupportsNamedTuple) or attrs.has(kind)
    ):
        return lambda values: kind(**dict(zip(names, values, strict=True)))
    return lambda values: tff.types.type_to_py_container(
        structure.Struct(list(zip(names, values, strict=True))), type_spec
    )
