"""Assertions in graphs whose other control edges are removed.

No data depend on an assertion: it runs only because of control edges, and
`tf.vectorized_map` converts it only if an op that it converts has such an edge.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from tff_algos.execution import graph_contents
from tff_algos.execution.graph_contents import GraphDef

OPS = frozenset(["Assert", "CheckNumerics", "CheckNumericsV2"])

# The ops of the branches with which `tf.debugging.Assert` guards data other than
# strings and int32.
_GUARDED = frozenset(["Assert", "Const", "Identity", "NoOp"])


def is_assertion(node: NodeDef, functions: Mapping[str, FunctionDef]) -> bool:
    """Returns whether a node is an assertion or a branch that is nothing else.

    Args:
      node: The node.
      functions: The functions that it may call, by name.
    """
    if node.op != "If":
        return node.op in OPS
    called = graph_contents.called_functions(node)
    ops = {each.op for name in called for each in functions[name].node_def}
    return "Assert" in ops and ops <= _GUARDED


def assert_before(graph_def: GraphDef, outputs: Sequence[tf.Tensor]) -> tuple[str, ...]:
    """Removes all control edges but those from assertions to outputs.

    Args:
      graph_def: An inlined graph without effects; changed in place.
      outputs: The tensors to fetch.

    Returns:
      The names of the same tensors, which become available after all assertions.
    """
    functions = graph_contents.functions_by_name(graph_def)
    for node in graph_def.node:
        kept = [tensor for tensor in node.input if not tensor.startswith("^")]
        del node.input[:]
        node.input.extend(kept)
    nodes = {node.name: node for node in graph_def.node}
    asserted = [node.name for node in nodes.values() if is_assertion(node, functions)]
    if not asserted:
        return tuple(output.name for output in outputs)
    for index, output in enumerate(outputs):
        node = graph_def.node.add(name=f"asserted_{index}", op="Identity")
        node.input.extend([output.name, *(f"^{name}" for name in asserted)])
        node.attr["T"].type = output.dtype.as_datatype_enum
    return tuple(f"asserted_{index}:0" for index in range(len(outputs)))
