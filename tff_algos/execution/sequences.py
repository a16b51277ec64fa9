"""Leaves for operators on sequences: `sequence_map`, `_reduce` and `_sum`."""

import itertools
from collections.abc import Sequence

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.types import type_conversions

from tff_algos.execution import graph_rewrites, types
from tff_algos.execution import leaves as leaves_lib


class Element:
    """Converts between a dataset's elements and tensors in the order of their type.

    The orders may differ, because `tf.nest` sorts dictionaries by key.
    """

    def __init__(self, element_type: tff.Type):
        """Builds the structure of elements of a type."""
        self.spec = type_conversions.type_to_tf_structure(element_type)
        positions = itertools.count()
        self._order = tf.nest.flatten(
            type_conversions.structure_from_tensor_type_tree(
                lambda _: next(positions), element_type
            )
        )

    def pack(self, tensors: Sequence[tf.Tensor]):
        """Returns the element, given its tensors in the order of the type."""
        flat = [tensors[position] for position in self._order]
        return tf.nest.pack_sequence_as(self.spec, flat)

    def unpack(self, element) -> list[tf.Tensor]:
        """Returns the tensors of an element in the order of the type."""
        flat = dict(zip(self._order, tf.nest.flatten(element), strict=True))
        return [flat[position] for position in sorted(flat)]


def map_leaf(
    function: leaves_lib.Leaf, source: tff.SequenceType, result: tff.SequenceType
) -> leaves_lib.Leaf:
    """Builds the leaf that applies another leaf to each element of a sequence."""
    taken, given = Element(source.element), Element(result.element)

    def apply(variant: tf.Tensor) -> list[tf.Tensor]:
        data = tf.data.experimental.from_variant(variant, taken.spec)
        mapped = data.map(lambda *e: given.pack(function(taken.unpack(e))))
        return [tf.data.experimental.to_variant(mapped)]

    return _leaf(f"{function.name}_map", apply, [source])


def reduce_leaf(
    function: leaves_lib.Leaf, source: tff.SequenceType, zero: tff.Type
) -> leaves_lib.Leaf:
    """Builds the leaf that reduces a sequence by another leaf, starting at a zero."""
    taken = Element(source.element)

    def apply(variant: tf.Tensor, *zeros: tf.Tensor) -> Sequence[tf.Tensor]:
        data = tf.data.experimental.from_variant(variant, taken.spec)
        return data.reduce(
            tuple(zeros),
            lambda state, *e: tuple(function([*state, *taken.unpack(e)])),
        )

    return _leaf(f"{function.name}_reduce", apply, [source, *types.flatten(zero)])


def sum_leaf(source: tff.SequenceType) -> leaves_lib.Leaf:
    """Builds the leaf that sums a sequence of tensors of known shapes."""
    taken = Element(source.element)

    def apply(variant: tf.Tensor) -> Sequence[tf.Tensor]:
        data = tf.data.experimental.from_variant(variant, taken.spec)
        specs = taken.unpack(taken.spec)
        return data.reduce(
            tuple(tf.zeros(spec.shape, spec.dtype) for spec in specs),
            lambda state, *e: tuple(
                a + b for a, b in zip(state, taken.unpack(e), strict=True)
            ),
        )

    return _leaf("sequence_sum", apply, [source])


def _leaf(name, function, inputs: Sequence[tff.Type]) -> leaves_lib.Leaf:
    with tf.Graph().as_default() as graph:
        fed = [
            tf.compat.v1.placeholder(spec.dtype, spec.shape)
            for spec in map(types.tensor_spec, inputs)
        ]
        outputs = [tf.identity(tensor) for tensor in function(*fed)]
    graph_def = graph.as_graph_def()
    # The names that the functions were traced with are already registered.
    graph_rewrites.prefix_functions(graph_def)
    return leaves_lib.Leaf(
        name,
        graph_def,
        tuple(tensor.name for tensor in fed),
        tuple(tensor.name for tensor in outputs),
    )
