"""Leaves of computations with variables, and what they compute without these."""

import numpy as np
import tensorflow as tf

from tff_algos.execution import graph_contents, leaves, tracing, variables


def leaf_of(computation) -> leaves.Leaf:
    return leaves.from_block(computation.to_building_block(), "leaf")


def ops_of(leaf: leaves.Leaf) -> set[str]:
    return {node.op for node in graph_contents.all_nodes(leaf.graph_def)}


def values_of(leaf: leaves.Leaf, *arguments) -> list:
    specs = [tf.TensorSpec.from_tensor(each) for each in arguments]
    given = [name is not None for name in leaf.inputs]

    def run(*tensors):
        tensors = [t if used else None for t, used in zip(tensors, given, strict=True)]
        return leaf(tensors)

    outputs = tracing.trace(run, specs)(*arguments)
    return [output.numpy() for output in outputs]


def assert_lifted_to_the_same(computation, *arguments) -> leaves.Leaf:
    """Asserts that a leaf computes the same bits without variables."""
    leaf = leaf_of(computation)
    lifted = variables.lift(leaf)
    assert lifted.obstacle == ""
    assert "VarHandleOp" in ops_of(leaf)
    assert not [op for op in ops_of(lifted) if "Variable" in op or "VarHandle" in op]
    tensors = list(map(tf.constant, arguments))
    for found, expected in zip(
        values_of(lifted, *tensors), values_of(leaf, *tensors), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    return lifted
