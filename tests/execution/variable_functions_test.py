"""What functions of a leaf's library do to the variables that they are given."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.leaves_with_variables import leaf_of
from tff_algos.execution import graph_contents, variable_functions


@tff.tensorflow.computation(np.float32)
def compute(x):
    names = ("changed", "read", "branch", "step")
    changed, read, branch, step = (tf.Variable(1.0, name=name) for name in names)

    @tf.function
    def run():
        if x > read:
            branch.assign(x)
        for _ in tf.range(3):
            changed.assign_add(read)
        numbers = tf.data.Dataset.range(3)
        return numbers.reduce(0.0, lambda total, _: total + step.assign(total))

    return run()


def test_arguments_that_are_assigned_to_are_found_through_calls():
    leaf = leaf_of(compute)
    (call,) = [node for node in leaf.graph_def.node if "PartitionedCall" in node.op]
    given = [graph_contents.node_name(name) for name in call.input if name[0] != "^"]
    (name,) = graph_contents.called_functions(call)
    functions = variable_functions.Functions(leaf.graph_def.library)
    with tf.Graph().as_default() as graph:
        leaf.add_functions(graph)
        written = {given[index] for index in functions.written_arguments(name)}
        assert written == {"changed", "branch", "step"}
        changed, read = (given[given.index(each)] for each in ("changed", "read"))
        assert functions.assign_to([name], given, changed)
        assert not functions.assign_to([name], given, read)
        assert not functions.creates_variables(name)
