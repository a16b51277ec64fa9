"""Python values go in and come out as their types say, or are type errors."""

import collections
import math
from typing import NamedTuple

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import equivalence
from tff_algos.execution import types

same = equivalence.assert_same_in_both


class Pair(NamedTuple):
    left: object
    right: object


@attrs.define(eq=False)
class Point:
    x: object
    y: object


VALUES = {
    "bool": (np.bool_, True),
    "int32": (np.int32, -3),
    "int64": (np.int64, 2**40),
    "uint8": (np.uint8, 255),
    "float16": (np.float16, 0.5),
    "float32": (np.float32, 1e-30),
    "float64": (np.float64, 1e300),
    "complex64": (np.complex64, 1 + 2j),
    "string": (np.str_, "text"),
    "vector": ((np.float32, [3]), [1.0, 2.0, 3.0]),
    "strings": ((np.str_, [2]), ["a", "b"]),
    "bools": ((np.bool_, [2]), [True, False]),
    "zero size": ((np.float32, [0, 3]), np.zeros([0, 3], np.float32)),
    "unknown size": ((np.int32, [None]), [4, 5]),
    "unknown shape": (tff.TensorType(np.int32, None), np.ones([2, 2], np.int32)),
    "tuple": ((np.int32, np.float32), (1, 2.0)),
    "empty": (tff.StructType([]), ()),
    "dict": (
        collections.OrderedDict(b=np.int32, a=(np.str_, np.bool_)),
        collections.OrderedDict(b=1, a=("x", False)),
    ),
    "named tuple": (Pair(np.int32, [np.float32, np.int64]), Pair(1, [2.0, 3])),
    "attrs": (Point(np.int32, Pair(np.int32, np.int32)), Point(1, Pair(2, 3))),
    "list": ([np.int32, np.int32], [1, 2]),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_go_in_and_come_out(name):
    spec, value = VALUES[name]
    spec = tff.to_type(spec)

    @tff.tensorflow.computation(spec)
    def through(x):
        return x

    @tff.federated_computation(spec)
    def local(x):
        return [x, collections.OrderedDict(twice=(x, x))]

    @tff.federated_computation(
        tff.FederatedType(spec, tff.SERVER),
        tff.FederatedType(spec, tff.CLIENTS),
        tff.FederatedType(spec, tff.CLIENTS, all_equal=True),
    )
    def placed(server, clients, equal):
        return collections.OrderedDict(server=server, clients=clients, equal=equal)

    @tff.federated_computation(tff.FederatedType(spec, tff.CLIENTS))
    def mapped(clients):
        return tff.federated_map(through, clients)

    same(through, value)
    same(local, value)
    same(placed, value, [value, value], value)
    same(mapped, [value, value, value])
    # Where TFF's own runtime fails: it has no value to take the structure from.
    assert equivalence.call(equivalence.in_process(), mapped, []) == []


def test_elements_of_a_type_without_names_may_have_names():
    unnamed = tff.StructType([np.float32, (np.int32, np.bool_)])
    named = {"x": 1.5, "y": {"a": 2, "b": True}}

    @tff.tensorflow.computation(unnamed)
    def through(value):
        return value

    tensors = iter(types.embed(named, unnamed))
    assert list(map(float, tensors)) == [1.5, 2, 1]
    same(through, named)


def test_lists_of_bytes_keep_them():
    words = [b"\xc3\xa9", b"a\0"]
    (tensor,) = types.embed(words, tff.TensorType(np.str_, [None]))
    assert list(tensor.numpy()) == words


@pytest.mark.parametrize("wrong", [["a", None], [1, 2]])
def test_lists_of_other_things_are_no_strings(wrong):
    with pytest.raises(TypeError, match=r"Expected a value of type str\[\?\], found"):
        list(types.embed(wrong, tff.TensorType(np.str_, [None])))


def test_values_the_type_does_not_allow_are_type_errors():
    @tff.tensorflow.computation(tff.TensorType(np.float32, [2]))
    def through(x):
        return x

    for wrong in ([1.0, 2.0, 3.0], "text", np.zeros([2], np.complex64)):
        with pytest.raises(TypeError):
            equivalence.call(equivalence.in_process(), through, wrong)
        with pytest.raises(TypeError):
            through(wrong)


def _round_trip(value):
    matrix_type = tff.TensorType(value.dtype.type, [800, 800])
    (tensor,) = types.embed(value, matrix_type)
    return types.extract(iter([tensor]), matrix_type)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, tf.bfloat16.as_numpy_dtype])
def test_large_arrays_come_out_read_only_and_go_in_again_without_a_copy(dtype):
    given = (10 * np.random.default_rng(0).normal(size=[800, 800])).astype(dtype)
    first = _round_trip(given)
    second = _round_trip(first)
    assert second.dtype == dtype and np.array_equal(second, given)
    assert np.shares_memory(first, second)
    assert types.is_view(second)
    assert not any(map(types.is_view, (second[1:], second[::2], second.T[1:], given)))
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1.0


def test_arrays_of_the_caller_are_copied():
    own = np.ones([800, 800], np.float32)
    shown = _round_trip(own)
    own[:] = 2.0
    assert shown.max() == 1.0
    own.flags.writeable = False
    shown = _round_trip(own)
    assert not np.shares_memory(own, shown)


def test_small_arrays_can_be_changed():
    (tensor,) = types.embed(np.ones(3, np.float32), tff.TensorType(np.float32, [3]))
    value = types.extract(iter([tensor]), tff.TensorType(np.float32, [3]))
    value[0] = 5.0
    assert value.tolist() == [5.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1, 2], np.int32, [1, 2]),
        ([True, 2], np.float32, [1.0, 2.0]),
        ([math.inf, math.nan], np.float32, [math.inf, math.nan]),
        ([1.9, 2.9], np.int32, None),
        (["1", "2"], np.int32, None),
        ([1.0, None], np.float32, None),
        ([1e300, 1.0], np.float32, None),
        ([2**33, 1], np.int32, None),
        ([300, 2], np.uint8, None),
        ([[1], [2, 3]], np.float32, None),
    ],
)
def test_a_list_is_taken_if_the_dtype_holds_it(values, dtype, expected):
    type_spec = tff.TensorType(dtype, (2,))
    if expected is None:
        with pytest.raises(TypeError, match=r"^Expected a value of type .*found \["):
            list(types.embed(values, type_spec))
    else:
        (tensor,) = types.embed(values, type_spec)
        assert tensor.dtype == dtype
        np.testing.assert_array_equal(tensor, expected)
