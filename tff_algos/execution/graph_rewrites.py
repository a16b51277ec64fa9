"""Rewrites of TensorFlow graphs that let TFF's leaves run inside functions.

A leaf of a compiled TFF computation is meant for its own session: its variables are
shared by name, an op initializes them first, and datasets are reduced by an op that
instantiates its function on every call. The functions in this module change a GraphDef
in place; together they turn the leaf into a graph that can be imported anywhere, any
number of times, and run by many threads.
"""

import itertools
from collections.abc import Iterable, Mapping

import tensorflow as tf
from tensorflow.core.framework import function_pb2, node_def_pb2
from tensorflow.python.grappler import tf_optimizer

from tff_algos import xla_marks
from tff_algos.execution import graph_contents
from tff_algos.execution.graph_contents import GraphDef
from tff_algos.random_ops import RANDOM_OPS

# With this shared name, TensorFlow creates a new variable at every execution and frees
# it with its last reference (`ResourceHandle::ANONYMOUS_NAME`).
_ANONYMOUS = b"cd2c89b7-88b7-44c8-ad83-06c2a9158347"

# Ops with a resource found by name, and the equivalent ops with an anonymous resource.
_ANONYMOUS_OPS = {
    "HashTableV2": "AnonymousHashTable",
    "MutableHashTableV2": "AnonymousMutableHashTable",
    "MutableHashTableOfTensorsV2": "AnonymousMutableHashTableOfTensors",
    "MutableDenseHashTableV2": "AnonymousMutableDenseHashTable",
    "IteratorV2": "AnonymousIteratorV3",
}
_SHARING_ATTRIBUTES = ("container", "shared_name", "use_node_name_sharing")

# oneDNN's kernels of these gradients are used only if TensorFlow's graph rewrite visits
# the forward op first.
_BEHIND_FORWARD_OPS = ("LRNGrad", "MaxPoolGrad")

_REFERENCE_OPS = ("Variable", "VariableV2", "TemporaryVariable")

_numbers = itertools.count()


class UnsupportedOpError(ValueError):
    """A leaf has an op that cannot run inside a function; the message names it."""


def drop_colocations(graph_def: GraphDef) -> None:
    """Removes colocation constraints; an op that they name may be absent or fed."""
    for node in graph_contents.all_nodes(graph_def):
        node.attr.pop("_class", None)


def fold_constants(graph_def: GraphDef, fetched: Iterable[str]) -> GraphDef:
    """Returns the graph with its constants folded as TFF's runtime folds them.

    TFF's runtime folds a product with a constant zero to zero, whatever the other
    factor. Thus the mean of no elements, which is NaN, contributes nothing when it is
    weighted by the number of elements.

    Args:
      graph_def: A graph without resources of other graphs.
      fetched: The names of the nodes to keep.
    """
    config = tf.compat.v1.ConfigProto()
    options = config.graph_options.rewrite_options
    for field in options.DESCRIPTOR.fields:
        # Not a list of optimizers, because these would run at their default level.
        if field.enum_type == options.DESCRIPTOR.enum_types_by_name["Toggle"]:
            setattr(options, field.name, options.OFF)
    options.memory_optimization = options.NO_MEM_OPT
    options.constant_folding = options.AGGRESSIVE
    options.meta_optimizer_iterations = options.ONE
    options.min_graph_nodes = -1  # Optimize graphs of any size.
    meta_graph = tf.compat.v1.MetaGraphDef(graph_def=graph_def)
    meta_graph.collection_def["train_op"].node_list.value.extend(fetched)
    return tf_optimizer.OptimizeGraph(config, meta_graph)


def drop_waits_for_inputs(graph_def: GraphDef) -> None:
    """Lets no node wait for a placeholder, which is no node after the import.

    Gradients wait for what they are given, and folded constants for what they replace.
    """
    fed = {f"^{node.name}" for node in graph_def.node if node.op == "Placeholder"}
    for node in graph_def.node:
        if not fed.isdisjoint(node.input):
            node.input[:] = [name for name in node.input if name not in fed]


def own_resources(graph_def: GraphDef) -> None:
    """Makes every variable, table and iterator private to an execution.

    Raises:
      UnsupportedOpError: For variables of TensorFlow 1, which have no handle.
    """
    for node in graph_contents.all_nodes(graph_def):
        if node.op in _REFERENCE_OPS:
            raise UnsupportedOpError(
                f"Expected resource variables, found {node.op} {node.name!r}."
            )
        if node.op == "VarHandleOp":
            node.attr["shared_name"].s = _ANONYMOUS
        elif node.op in _ANONYMOUS_OPS:
            node.op = _ANONYMOUS_OPS[node.op]
            for attribute in _SHARING_ATTRIBUTES:
                node.attr.pop(attribute, None)


def initialize_first(graph_def: GraphDef, initialize_op: str) -> None:
    """Makes `initialize_op` run before all other ops that access a resource.

    Args:
      graph_def: The graph; also sorted topologically.
      initialize_op: The name of the node that initializes the variables and tables.
    """
    nodes = {node.name: node for node in graph_def.node}
    initializing = graph_contents.ancestors(nodes, [initialize_op])
    resources = {node.name for node in graph_def.node if _makes_resource(node)}
    for node in graph_def.node:
        if node.name in initializing or node.name in resources:
            continue
        if any(graph_contents.node_name(name) in resources for name in node.input):
            node.input.append(f"^{initialize_op}")
    sort(graph_def)


def _makes_resource(node: node_def_pb2.NodeDef) -> bool:
    definition = graph_contents.op_definition(node.op)
    return definition is not None and any(
        output.type == tf.resource.as_datatype_enum for output in definition.output_arg
    )


def sort(graph_def: GraphDef) -> None:
    """Sorts the nodes topologically and stably.

    Automatic control dependencies follow the order in which ops are created, which must
    agree with the dependencies in the graph.
    """
    nodes = {node.name: node for node in graph_def.node}
    ordered, visited = [], set()
    for root, node in nodes.items():
        if root in visited:
            continue
        stack = [(root, iter(node.input))]
        visited.add(root)
        while stack:
            name, inputs = stack[-1]
            for tensor in inputs:
                needed = graph_contents.node_name(tensor)
                if needed not in visited:
                    visited.add(needed)
                    stack.append((needed, iter(nodes[needed].input)))
                    break
            else:
                ordered.append(nodes[name])
                stack.pop()
    copies = [node_def_pb2.NodeDef.FromString(n.SerializeToString()) for n in ordered]
    del graph_def.node[:]
    graph_def.node.extend(copies)


def keep_data_on_host(graph_def: GraphDef) -> None:
    """Pins ops that create or read datasets to the CPU, the only device with them."""
    for node in graph_contents.all_nodes(graph_def):
        if node.op in _HOST_OPS or node.op.endswith(("Dataset", "DatasetV2")):
            node.device = "/device:CPU:0"


_HOST_OPS = (
    "AnonymousIteratorV3",
    "MakeIterator",
    "IteratorGetNext",
    "IteratorGetNextAsOptional",
    "OptionalHasValue",
    "OptionalGetValue",
    "DatasetFromGraph",
)


def keep_loops_whole(graph_def: GraphDef) -> None:
    """Keeps loops with certain gradients as functions, instead of lowering them.

    A lowered loop has no first op, and the order in which TensorFlow visits its ops
    depends on addresses: some executions of a graph used oneDNN's gradient of max
    pooling, others Eigen's, which made a step of a small CNN an eighth slower. The body
    of a loop that stays a function has a first op. Each iteration then takes about ten
    microseconds longer, and the whole body runs on one device: only for CPUs.
    """
    functions = graph_contents.functions_by_name(graph_def)
    for node in graph_contents.all_nodes(graph_def):
        if node.op in graph_contents.LOOPS:
            ops = graph_contents.reached_ops(node.attr["body"].func.name, functions)
            if not ops.isdisjoint(_BEHIND_FORWARD_OPS):
                node.attr["_lower_using_switch_merge"].b = False


def compile_marked_functions(graph_def: GraphDef) -> None:
    """Lets XLA compile the calls of functions marked by `xla_marks.compiled_on_cpu`.

    XLA compiles a call when it first meets its shapes, which takes about a second.
    """
    marked = {
        function.signature.name
        for function in graph_def.library.function
        if xla_marks.is_marked(function)
    }
    for node in graph_contents.all_nodes(graph_def):
        if "f" in node.attr and node.attr["f"].func.name in marked:
            node.attr["_XlaMustCompile"].b = True


def without_unused(graph_def: GraphDef, outputs: Iterable[str]) -> GraphDef:
    """Returns the nodes that outputs or ops with effects need.

    Drawing a random number is no effect, so an unused initial value is not drawn.
    """
    functions = graph_contents.functions_by_name(graph_def)
    nodes = {node.name: node for node in graph_def.node}
    kept = {name for name, node in nodes.items() if _has_effects(node, functions)}
    for node in nodes.values():
        inputs = [
            name
            for name in node.input
            if not name.startswith("^") or graph_contents.node_name(name) in kept
        ]
        del node.input[:]
        node.input.extend(inputs)
    needed = graph_contents.ancestors(
        nodes, [*map(graph_contents.node_name, outputs), *kept]
    )
    pruned = GraphDef(versions=graph_def.versions)
    pruned.node.extend(node for node in graph_def.node if node.name in needed)
    called = set()
    for node in pruned.node:
        for name in graph_contents.called_functions(node):
            called |= graph_contents.reached_functions(name, functions)
    pruned.library.function.extend(
        functions[name] for name in functions if name in called
    )
    return pruned


def _has_effects(
    node: node_def_pb2.NodeDef, functions: Mapping[str, function_pb2.FunctionDef]
) -> bool:
    ops = graph_contents.ops_of(node, functions)
    definitions = [
        graph_contents.op_definition(op)
        for op in ops - graph_contents.CALLS - RANDOM_OPS - {"Placeholder"}
    ]
    return any(each is not None and each.is_stateful for each in definitions)


def prefix_functions(graph_def: GraphDef) -> Mapping[str, str]:
    """Gives the graph's functions names that are unique in this process.

    Returns:
      A map from old to new names.
    """
    prefix = f"leaf{next(_numbers)}_"
    names = {
        function.signature.name: prefix + function.signature.name
        for function in graph_def.library.function
    }
    for function in graph_def.library.function:
        function.signature.name = names[function.signature.name]
        # These only link a forward function and its gradient, by their old names.
        for attribute in ("forward_function_name", "backward_function_name"):
            function.attr.pop(attribute, None)
    for gradient in graph_def.library.gradient:
        gradient.function_name = names[gradient.function_name]
        gradient.gradient_func = names[gradient.gradient_func]
    for node in graph_contents.all_nodes(graph_def):
        node.op = names.get(node.op, node.op)
        for value in node.attr.values():
            if value.HasField("func"):
                value.func.name = names.get(value.func.name, value.func.name)
            for function in value.list.func:
                function.name = names.get(function.name, function.name)
    return names


def rename_outputs(
    function: function_pb2.FunctionDef, positions: Mapping[str, Mapping[str, int]]
) -> None:
    """Renames the outputs of nodes that become calls, whose only output is `output`.

    Args:
      function: The function; changed in place.
      positions: For each of these nodes, the position among all its output tensors of
        the first tensor of each of its outputs.
    """

    def renamed(tensor: str) -> str:
        name, _, rest = tensor.partition(":")
        if name not in positions or not rest:
            return tensor
        output, _, index = rest.partition(":")
        return f"{name}:output:{positions[name][output] + int(index)}"

    for node in function.node_def:
        inputs = [renamed(tensor) for tensor in node.input]
        del node.input[:]
        node.input.extend(inputs)
    # A copy, because assigning while iterating over a proto's map can skip entries.
    for key, tensor in dict(function.ret).items():
        function.ret[key] = renamed(tensor)
