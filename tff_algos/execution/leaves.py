"""Leaves of a compiled TFF computation: blocks of TensorFlow, callable in a graph."""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.core.framework import function_pb2
from tensorflow.core.function.polymorphism import function_type
from tensorflow.python.eager.polymorphic_function import atomic_function

from tff_algos.execution import (
    graph_contents,
    graph_rewrites,
    list_products,
    loop_rewrites,
    normalization_gradients,
    reduction_loops,
)


@attrs.frozen(eq=False, slots=False)
class Leaf:
    """A TensorFlow graph with inputs and outputs.

    Attributes:
      name: The name in error messages.
      graph_def: The graph, pruned to the outputs; may be imported many times.
      inputs: The names of the tensors to feed; `None` for unused inputs.
      outputs: The names of the tensors to fetch.
      obstacle: Why the leaf still has variables; empty if it has none.
    """

    name: str
    graph_def: tf.compat.v1.GraphDef
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    obstacle: str = ""
    _functions: "_Functions" = attrs.field(init=False, repr=False)

    @_functions.default
    def _own_functions(self) -> "_Functions":
        return _Functions(self.graph_def.library)

    def __call__(self, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Adds the leaf to the current graph.

        Args:
          inputs: One tensor for each of `self.inputs`; datasets as variants.

        Returns:
          One tensor for each of `self.outputs`.
        """
        fed = zip(self.inputs, inputs, strict=True)
        outputs = tf.graph_util.import_graph_def(
            self.graph_def,
            input_map={name: tensor for name, tensor in fed if name is not None},
            return_elements=list(self.outputs),
            name=self.name,
        )
        self.add_functions(tf.compat.v1.get_default_graph())
        return outputs

    def add_functions(self, graph: tf.Graph) -> None:
        """Adds the functions that the leaf's nodes call to a graph."""
        self._functions.add_to(graph)

    @functools.cached_property
    def with_loops(self) -> "Leaf":
        """The leaf with dataset reductions replaced by loops, and with faster loops.

        It and the functions that it calls live as long as this leaf.
        """
        return self._rewritten(
            loop_rewrites.hoist_transposes,
            loop_rewrites.multiply_after_loops,
            list_products.multiply_elements_before_loops,
            list_products.multiply_elements_after_loops,
            reduction_loops.reduce_by_loops,
            graph_rewrites.keep_data_on_host,
        )

    @functools.cached_property
    def with_loops_on_cpu(self) -> "Leaf":
        """`with_loops` for CPUs only."""
        return self.with_loops._rewritten(
            normalization_gradients.compose_where_channels_vary,
            loop_rewrites.divide_products,
            graph_rewrites.keep_loops_whole,
            graph_rewrites.compile_marked_functions,
        )

    @functools.cached_property
    def for_many_clients(self) -> "Leaf":
        """The leaf to be vectorized over clients.

        It and the functions that it calls live as long as this leaf.
        """
        return self._rewritten(normalization_gradients.compose)

    def with_obstacle(self, obstacle: str) -> "Leaf":
        """Returns a leaf that says why it still has variables."""
        return attrs.evolve(self._rewritten(), obstacle=obstacle)

    def _rewritten(self, *rewrites: Callable[[tf.compat.v1.GraphDef], None]) -> "Leaf":
        graph_def = tf.compat.v1.GraphDef()
        graph_def.CopyFrom(self.graph_def)
        for rewrite in rewrites:
            rewrite(graph_def)
        # Registered functions must have unique names.
        graph_rewrites.prefix_functions(graph_def)
        return attrs.evolve(self, graph_def=graph_def)


class _Functions:
    """Functions that are registered with TensorFlow for this object's lifetime.

    Importing a graph adds its functions only to the importing graph: calls from outside
    do not find them, and `tf.vectorized_map` cannot inspect them.
    """

    def __init__(self, library: function_pb2.FunctionDefLibrary):
        self._library = library
        self._lock = threading.Lock()
        self._functions: dict[str, atomic_function.AtomicFunction] = {}

    def add_to(self, graph: tf.Graph) -> None:
        """Registers the functions and adds them to a graph that imported them."""
        with self._lock:
            if not self._functions:
                self._functions = _registered(self._library)
        graph._functions.update(self._functions)


def _registered(
    library: function_pb2.FunctionDefLibrary,
) -> dict[str, atomic_function.AtomicFunction]:
    """Registers functions with the runtime, callees before callers."""
    definitions = {each.signature.name: each for each in library.function}
    functions: dict[str, atomic_function.AtomicFunction] = {}
    for name in graph_contents.callees_first(library):
        functions[name] = atomic_function.from_function_def(
            definitions[name], _function_type(definitions[name])
        )
        functions[name]._children = [
            functions[called]
            for called in dict.fromkeys(
                called
                for node in definitions[name].node_def
                for called in graph_contents.called_functions(node)
            )
        ]
    return functions


def _function_type(definition: function_pb2.FunctionDef) -> function_type.FunctionType:
    outputs = tuple(
        tf.TensorSpec(None, tf.as_dtype(argument.type))
        for argument in definition.signature.output_arg
    )
    return function_type.from_structured_signature(
        (graph_contents.argument_specs(definition), {}), outputs, {}
    )


def from_block(block: tff.framework.CompiledComputation, name: str) -> Leaf:
    """Creates the leaf of a compiled block of TensorFlow.

    Args:
      block: A block with a `tensorflow` computation.
      name: The name in error messages and in the graph.

    Returns:
      The leaf.

    Raises:
      graph_rewrites.UnsupportedOpError: If an op cannot run inside a function.
    """
    proto = block.proto.tensorflow
    graph_def = tf.compat.v1.GraphDef()
    proto.graph_def.Unpack(graph_def)
    inputs = tuple(_tensor_names(proto.parameter))
    outputs = tuple(_tensor_names(proto.result))
    graph_def = _needed(graph_def, outputs, proto.initialize_op)
    graph_rewrites.drop_colocations(graph_def)
    if graph_contents.takes_empty_tensors(graph_def):
        fetched = [graph_contents.node_name(tensor) for tensor in outputs]
        needed = [*fetched, *filter(None, [proto.initialize_op])]
        graph_def = graph_rewrites.fold_constants(graph_def, needed)
    graph_rewrites.drop_waits_for_inputs(graph_def)
    graph_rewrites.own_resources(graph_def)
    if proto.initialize_op:
        graph_rewrites.initialize_first(graph_def, proto.initialize_op)
    _drop_session_token(graph_def, proto.session_token_tensor_name)
    reduction_loops.merge_scans(graph_def)
    graph_rewrites.prefix_functions(graph_def)
    present = {node.name for node in graph_def.node}
    fed = tuple(
        tensor if graph_contents.node_name(tensor) in present else None
        for tensor in inputs
    )
    return Leaf(name, graph_def, fed, outputs)


def _tensor_names(binding: Any) -> Iterator[str]:
    """Yields the tensors of a binding in the order of its type's leaves."""
    match binding.WhichOneof("binding"):
        case None:
            return
        case "tensor":
            yield binding.tensor.tensor_name
        case "sequence":
            yield binding.sequence.variant_tensor_name
        case "struct":
            for element in binding.struct.element:
                yield from _tensor_names(element)


def _needed(
    graph_def: tf.compat.v1.GraphDef, outputs: Sequence[str], initialize_op: str
) -> tf.compat.v1.GraphDef:
    """Returns the nodes that a session would run, including initialization."""
    fetched = [graph_contents.node_name(tensor) for tensor in outputs]
    if initialize_op:
        fetched.append(initialize_op)
    nodes = {node.name: node for node in graph_def.node}
    needed = graph_contents.ancestors(nodes, fetched)
    return tf.compat.v1.GraphDef(
        node=[node for node in graph_def.node if node.name in needed],
        library=graph_def.library,
        versions=graph_def.versions,
    )


def _drop_session_token(graph_def: tf.compat.v1.GraphDef, token: str) -> None:
    """Sets the session token to the value that it has without a session."""
    for node in graph_def.node:
        if token and node.name == graph_contents.node_name(token):
            node.op = "Const"
            node.attr.clear()
            node.attr["dtype"].type = tf.string.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(b""))
