"""What graphs and the functions of their libraries consist of.

Nothing here changes a graph; `graph_rewrites` does.
"""

import graphlib
from collections.abc import Iterable, Iterator, Mapping

import tensorflow as tf
from tensorflow.core.framework import (
    function_pb2,
    node_def_pb2,
    op_def_pb2,
    tensor_shape_pb2,
)
from tensorflow.python.framework import op_def_registry

GraphDef = tf.compat.v1.GraphDef
Nodes = Iterable[node_def_pb2.NodeDef]

LOOPS = frozenset(["While", "StatelessWhile"])
_LIST_READERS = frozenset(["TensorListGetItem", "TensorListPopBack"])

# Stateful only if the functions that they call are.
CALLS = frozenset(["If", "While", "Case", "PartitionedCall", "StatefulPartitionedCall"])


def op_definition(op: str) -> op_def_pb2.OpDef | None:
    """Returns the definition of an op; `None` if the name is a function's."""
    return op_def_registry.get(op)


def all_nodes(graph_def: GraphDef) -> Iterator[node_def_pb2.NodeDef]:
    """Yields the graph's nodes and those of its functions."""
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def node_name(tensor_name: str) -> str:
    """Returns the node of an input's name: `a` for `a:1` and for `^a`."""
    return tensor_name.removeprefix("^").partition(":")[0]


def ancestors(
    nodes: Mapping[str, node_def_pb2.NodeDef], names: Iterable[str]
) -> set[str]:
    """Returns the named nodes and all their dependencies."""
    found, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(node_name(tensor) for tensor in nodes[name].input)
    return found


def functions_by_name(graph_def: GraphDef) -> dict[str, function_pb2.FunctionDef]:
    """Returns the graph's functions by their names."""
    return {each.signature.name: each for each in graph_def.library.function}


def called_functions(node: node_def_pb2.NodeDef) -> Iterator[str]:
    """Yields the names of the functions that a node calls."""
    if op_definition(node.op) is None:
        yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        for function in value.list.func:
            yield function.name


def callees_first(library: function_pb2.FunctionDefLibrary) -> list[str]:
    """Returns the names of functions, those that others call before these."""
    names = {each.signature.name for each in library.function}
    calls = {
        function.signature.name: [
            called
            for node in function.node_def
            for called in called_functions(node)
            if called in names
        ]
        for function in library.function
    }
    return list(graphlib.TopologicalSorter(calls).static_order())


def ops_of(
    node: node_def_pb2.NodeDef, functions: Mapping[str, function_pb2.FunctionDef]
) -> set[str]:
    """Returns a node's op and those of all functions that it calls."""
    called = called_functions(node)
    return {node.op}.union(*(reached_ops(name, functions) for name in called))


def reached_ops(
    name: str, functions: Mapping[str, function_pb2.FunctionDef]
) -> set[str]:
    """Returns the ops of a function and of all functions that it calls."""
    reached = reached_functions(name, functions)
    return {node.op for each in reached for node in functions[each].node_def}


def reached_functions(
    name: str, functions: Mapping[str, function_pb2.FunctionDef]
) -> set[str]:
    """Returns a function and all functions that it calls."""
    found, waiting = {name}, [name]
    while waiting:
        for node in functions[waiting.pop()].node_def:
            called = {each for each in called_functions(node) if each in functions}
            waiting += called - found
            found |= called
    return found


def argument_specs(
    function: function_pb2.FunctionDef,
) -> tuple[tf.TensorSpec, ...]:
    """Returns the specs of a function's arguments, as far as shapes are known."""
    return tuple(
        tf.TensorSpec(
            tf.TensorShape(argument_shape(function, index)), tf.as_dtype(argument.type)
        )
        for index, argument in enumerate(function.signature.input_arg)
    )


def argument_shape(
    function: function_pb2.FunctionDef, index: int
) -> tensor_shape_pb2.TensorShapeProto:
    """Returns the static shape of a function's argument, as far as it is known."""
    known = function.arg_attr[index].attr if index in function.arg_attr else {}
    if "_output_shapes" in known:
        return known["_output_shapes"].list.shape[0]
    return tf.TensorShape(None).as_proto()


def has_loops_over_time(graph_def: GraphDef) -> bool:
    """Returns whether a function loops over lists of tensors, as recurrent layers do.

    Loops over datasets are not among them.
    """
    functions = functions_by_name(graph_def)
    bodies = [
        node.attr["body"].func.name
        for function in functions.values()
        for node in function.node_def
        if node.op in LOOPS
    ]
    return any(
        _LIST_READERS & ops and not any("Iterator" in op for op in ops)
        for ops in (reached_ops(body, functions) for body in bodies)
    )


def takes_empty_tensors(graph_def: GraphDef) -> bool:
    """Returns whether a placeholder's static shape has no elements."""
    fed = [node for node in graph_def.node if node.op == "Placeholder"]
    shapes = [tf.TensorShape(node.attr["shape"].shape) for node in fed]
    return any(shape.num_elements() == 0 for shape in shapes)


def takes_turns(graph_def: GraphDef) -> bool:
    """Returns whether concurrent executions would affect each other's random numbers.

    TFF seeds noise by the current time, which two clients must not share, and an op
    with its own seed continues from its last state.
    """
    return any(
        node.op == "Timestamp" or is_seeded(node) for node in all_nodes(graph_def)
    )


def is_seeded(node: node_def_pb2.NodeDef) -> bool:
    """Returns whether a node is an op with random state and its own seed."""
    definition = op_definition(node.op)
    if definition is None or not definition.is_stateful:
        return False
    return any(node.attr[name].i for name in ("seed", "seed2") if name in node.attr)
