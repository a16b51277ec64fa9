"""Finds client work that can be vectorized over clients, and splits it for that.

Client work in TFF is a graph that reduces a dataset: a step for every batch updates a
state such as weights. If the graph is pure, without variables (which `variables.py`
turns into state) or tables, it can be split at the reductions,

    prepare --> step, step, ... --> finish

and each part can be vectorized over a leading axis of clients by `tf.vectorized_map`.
No declarations are needed: suitable work is recognized from its graph.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import attrs
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.core.framework.function_pb2 import FunctionDef, FunctionDefLibrary
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import convert_to_constants

from tff_algos.execution import (
    assertions,
    graph_contents,
    graph_functions,
    graph_rewrites,
    tracing,
    types,
    vectorization_faults,
)
from tff_algos.execution.dataflow import Aggregate, Evaluate, Placement, Select
from tff_algos.execution.graph_contents import GraphDef, Nodes
from tff_algos.execution.leaves import Leaf
from tff_algos.execution.plan import Fragment
from tff_algos.random_ops import RANDOM_OPS


class NotVectorizableError(Exception):
    """The work has to run client by client; the message says why."""


@attrs.frozen(eq=False)
class Reduction:
    """The reduction of a dataset for each client.

    Attributes:
      prepare: Maps the work's inputs, then the outputs of the earlier reductions, to
        the initial state, then the client's other arguments of the steps.
      share: Maps the same to the arguments that the steps of all clients share.
      shared: For each of the step's other arguments, whether it is shared.
      step: Maps the state, a batch's components and the other arguments to the next
        state.
      state_specs: The specs of the state.
      element_specs: The specs of a batch's components.
      other_specs: The specs of the step's other arguments.
    """

    prepare: Leaf
    share: Leaf
    shared: tuple[bool, ...]
    step: Leaf
    state_specs: tuple[tf.TensorSpec, ...]
    element_specs: tuple[tf.TensorSpec, ...]
    other_specs: tuple[tf.TensorSpec, ...]


@attrs.frozen(eq=False)
class VectorizedWork:
    """A fragment of client work split at its reductions.

    Attributes:
      fragment: The work.
      data: Maps the work's inputs to the datasets to reduce, one for each reduction.
      data_inputs: For each of these datasets, the position of the input that it is, or
        `None` if it is computed from the inputs.
      same_data: For each of them, the position of the first one that is the same.
      may_vary: For each of them, whether it is computed by an op that may make other
        elements at every reading, such as a shuffle.
      reductions: The reductions in topological order.
      finish: Maps the work's inputs, then all outputs of the reductions, to the work's
        outputs.
    """

    fragment: Fragment
    data: Leaf
    data_inputs: tuple[int | None, ...]
    same_data: tuple[int, ...]
    may_vary: tuple[bool, ...]
    reductions: tuple[Reduction, ...]
    finish: Leaf


def vectorize(fragment: Fragment) -> VectorizedWork:
    """Splits client work at its reductions.

    Args:
      fragment: The fragment of a client pass.

    Returns:
      The parts of the work.

    Raises:
      NotVectorizableError: If the work has side effects or does not read its data by
        reductions.
    """
    for port in fragment.outputs:
        if isinstance(port.type_signature, tff.SequenceType):
            raise NotVectorizableError("a result is a dataset")
    for node in fragment.nodes:
        if isinstance(node, Select):
            raise NotVectorizableError("a federated_select")
        if isinstance(node, Evaluate) and node.leaf.obstacle:
            raise NotVectorizableError(node.leaf.obstacle)
    work = _inline(
        tracing.concrete_function(
            lambda *inputs: graph_functions.evaluate(
                fragment, inputs, lambda leaf: leaf.for_many_clients
            ),
            [types.tensor_spec(port.type_signature) for port in fragment.inputs],
        ),
        "work",
    )
    return _Cutter(fragment, work).cut()


def _inline(function: tf.types.experimental.ConcreteFunction, name: str) -> Leaf:
    """Returns a function's graph with all calls inlined.

    Of control edges, only those from assertions to outputs remain: without side
    effects, only data dependencies determine the order of ops.
    """
    graph_def = convert_to_constants._run_inline_graph_optimization(
        function, lower_control_flow=False, aggressive_inlining=True
    )
    outputs = assertions.assert_before(graph_def, function.outputs)
    # Inlining may have renamed the ops that these attributes colocate with.
    for node in graph_def.node:
        node.attr.pop("_class", None)
    graph_rewrites.prefix_functions(graph_def)
    inputs = tuple(tensor.name for tensor in function.inputs)
    return Leaf(name, graph_def, inputs, outputs)


def _check_pure(nodes: Nodes, functions: Mapping[str, FunctionDef]) -> None:
    """Checks that nodes have no effects other than to assert something.

    Args:
      nodes: Nodes of an inlined graph, or of a function with no assertions.
      functions: The functions that they call, by name.

    Raises:
      NotVectorizableError: If a node cannot be vectorized.
    """
    for node in nodes:
        _check_node(node)
        if not assertions.is_assertion(node, functions):
            for name in graph_contents.called_functions(node):
                called = functions[name].node_def
                if any(assertions.is_assertion(each, functions) for each in called):
                    raise NotVectorizableError("an assertion in a loop or a branch")
                _check_pure(called, functions)
    obstacle = vectorization_faults.find(nodes)
    if obstacle:
        raise NotVectorizableError(obstacle)


def _check_node(node: NodeDef) -> None:
    definition = graph_contents.op_definition(node.op)
    if definition is None:
        raise NotVectorizableError(f"a call of {node.op}")
    if "Dataset" in node.op or "Iterator" in node.op:
        raise NotVectorizableError(f"{node.op} outside of a reduction's data")
    if node.op in RANDOM_OPS and graph_contents.is_seeded(node):
        raise NotVectorizableError(f"{node.op} with a seed of its own")
    if definition.is_stateful and node.op not in _STATEFUL_IN_NAME_ONLY:
        raise NotVectorizableError(f"{node.op}, which has effects")


_STATEFUL_IN_NAME_ONLY = frozenset(
    ["Placeholder", *graph_contents.CALLS, *RANDOM_OPS]
).union(assertions.OPS)


class _Cutter:
    """Splits one inlined graph."""

    def __init__(self, fragment: Fragment, work: Leaf):
        self._fragment = fragment
        self._work = work
        self._nodes = {node.name: node for node in work.graph_def.node}
        self._functions = graph_contents.functions_by_name(work.graph_def)
        self._needed = graph_contents.ancestors(
            self._nodes, map(graph_contents.node_name, work.outputs)
        )
        self._per_client = self._differing_nodes()

    def cut(self) -> VectorizedWork:
        reduced = self._ordered_reductions()
        datasets = [node.input[0] for node in reduced]
        on_data = graph_contents.ancestors(
            self._nodes, map(graph_contents.node_name, datasets)
        )
        for node in reduced:
            if node.name in on_data:
                raise NotVectorizableError("a dataset depends on a reduction's result")
        self._check_pure(reduced, on_data - self._needed_beside_data())
        earlier: list[str] = []
        reductions = []
        inputs = tuple(map(self._input_position, datasets))
        names = [
            tensor if source is None else source
            for tensor, source in zip(datasets, inputs, strict=True)
        ]
        for node in reduced:
            reductions.append(self._reduction(node, tuple(earlier)))
            earlier += _outputs(node)
        return VectorizedWork(
            self._fragment,
            data=self._part("data", (), datasets),
            data_inputs=inputs,
            same_data=tuple(map(names.index, names)),
            may_vary=tuple(map(self._may_vary, datasets)),
            reductions=tuple(reductions),
            finish=self._part("finish", tuple(earlier), self._work.outputs),
        )

    def _differing_nodes(self) -> set[str]:
        """Returns the nodes whose values may differ between clients."""
        differing = {
            graph_contents.node_name(tensor)
            for tensor, port in zip(
                self._work.inputs, self._fragment.inputs, strict=True
            )
            if port.placement is Placement.CLIENTS
        }
        graph_rewrites.sort(self._work.graph_def)
        for node in self._work.graph_def.node:
            parents = map(graph_contents.node_name, node.input)
            random = node.op in RANDOM_OPS
            if random or node.op == "ReduceDataset" or differing.intersection(parents):
                differing.add(node.name)
        return differing

    def _ordered_reductions(self) -> list[NodeDef]:
        graph = self._work.graph_def
        return [
            node
            for node in graph.node
            if node.op == "ReduceDataset" and node.name in self._needed
        ]

    def _needed_beside_data(self) -> set[str]:
        """Returns the nodes that the parts need that do not make datasets."""
        beside = {}
        for name, node in self._nodes.items():
            beside[name] = copy = NodeDef()
            copy.CopyFrom(node)
            if node.op == "ReduceDataset":
                del copy.input[0]
        return graph_contents.ancestors(
            beside, map(graph_contents.node_name, self._work.outputs)
        )

    def _check_pure(self, reduced: Sequence[NodeDef], only_data: set[str]) -> None:
        # All nodes, not only those that outputs depend on: effects may be reachable
        # only by control edges, which are removed.
        names = self._nodes.keys() - only_data - {node.name for node in reduced}
        nodes = [self._nodes[name] for name in names]
        for node in nodes:
            # Several parts may compute it, each with other numbers.
            for op in sorted(graph_contents.ops_of(node, self._functions) & RANDOM_OPS):
                raise NotVectorizableError(f"{op} outside of a step")
        _check_pure(nodes, self._functions)

    def _input_position(self, tensor: str) -> int | None:
        """Returns the position of the input that a tensor is, ignoring identities."""
        name = graph_contents.node_name(tensor)
        while self._nodes[name].op == "Identity":
            name = graph_contents.node_name(self._nodes[name].input[0])
        inputs = [graph_contents.node_name(each) for each in self._work.inputs]
        return inputs.index(name) if name in inputs else None

    def _may_vary(self, dataset: str) -> bool:
        """Returns whether an op that makes a dataset may do otherwise the next time."""
        name = graph_contents.node_name(dataset)
        for each in graph_contents.ancestors(self._nodes, [name]):
            ops = graph_contents.ops_of(self._nodes[each], self._functions)
            if ops & RANDOM_OPS or any("Shuffle" in op or "Random" in op for op in ops):
                return True
        return False

    def _reduction(
        self,
        node: NodeDef,
        earlier: tuple[str, ...],
    ) -> Reduction:
        num_states = len(node.attr["Tstate"].list.type)
        states = node.input[1 : 1 + num_states]
        others = node.input[1 + num_states :]
        step, specs = self._step(node)
        shared = tuple(
            graph_contents.node_name(tensor) not in self._per_client
            for tensor in others
        )
        common = list(itertools.compress(others, shared))
        own = [tensor for tensor, each in zip(others, shared, strict=True) if not each]
        return Reduction(
            prepare=self._part("prepare", earlier, [*states, *own]),
            share=self._part("share", earlier, common),
            shared=shared,
            step=step,
            state_specs=tuple(specs[:num_states]),
            element_specs=tuple(specs[num_states : len(specs) - len(others)]),
            other_specs=tuple(specs[len(specs) - len(others) :]),
        )

    def _step(self, node: NodeDef) -> tuple[Leaf, list[tf.TensorSpec]]:
        """Returns the function of a reduction, inlined, and its arguments' specs."""
        function = self._functions[node.attr["f"].func.name]
        specs = list(graph_contents.argument_specs(function))
        shapes = node.attr["output_shapes"].list.shape
        for index, shape in enumerate(shapes):
            specs[index] = tf.TensorSpec(tf.TensorShape(shape), specs[index].dtype)
        leaf = _call_of(function, self._work.graph_def.library)
        concrete = tracing.concrete_function(lambda *inputs: leaf(inputs), specs)
        step = _inline(concrete, "step")
        graph = step.graph_def
        _check_pure(graph.node, graph_contents.functions_by_name(graph))
        return step, specs

    def _part(
        self, name: str, earlier: tuple[str, ...], outputs: Iterable[str]
    ) -> Leaf:
        """Returns the part of the graph from inputs and reductions to outputs."""
        placeholders = {
            tensor: f"earlier_{index}" for index, tensor in enumerate(earlier)
        }
        part = GraphDef(
            versions=self._work.graph_def.versions,
            library=self._work.graph_def.library,
        )
        renamed = [_rename(tensor, placeholders) for tensor in outputs]
        copies = {}
        for node in self._work.graph_def.node:
            copy = NodeDef()
            copy.CopyFrom(node)
            inputs = [_rename(tensor, placeholders) for tensor in node.input]
            del copy.input[:]
            copy.input.extend(inputs)
            copies[copy.name] = copy
        for tensor, placeholder in placeholders.items():
            copies[placeholder] = self._placeholder(tensor, placeholder)
        wanted = graph_contents.ancestors(
            copies, map(graph_contents.node_name, renamed)
        )
        part.node.extend(node for key, node in copies.items() if key in wanted)
        graph_rewrites.prefix_functions(part)
        inputs = (*self._work.inputs, *(f"{p}:0" for p in placeholders.values()))
        present = tuple(
            tensor if graph_contents.node_name(tensor) in wanted else None
            for tensor in inputs
        )
        return Leaf(name, part, present, tuple(map(_with_index, renamed)))

    def _placeholder(self, tensor: str, name: str) -> NodeDef:
        node = self._nodes[graph_contents.node_name(tensor)]
        index = int(tensor.partition(":")[2] or 0)
        placeholder = NodeDef(name=name, op="Placeholder")
        placeholder.attr["dtype"].type = node.attr["Tstate"].list.type[index]
        shape = node.attr["output_shapes"].list.shape[index]
        placeholder.attr["shape"].shape.CopyFrom(shape)
        return placeholder


def _rename(tensor: str, placeholders: Mapping[str, str]) -> str:
    return f"{placeholders[tensor]}:0" if tensor in placeholders else tensor


def _with_index(tensor: str) -> str:
    """Returns a tensor's full name; inputs of nodes omit `:0`."""
    return tensor if ":" in tensor else f"{tensor}:0"


def _outputs(reduction: NodeDef) -> list[str]:
    """Returns the names of a node's outputs as used in inputs."""
    count = len(reduction.attr["Tstate"].list.type)
    return [reduction.name] + [f"{reduction.name}:{i}" for i in range(1, count)]


def _call_of(function: FunctionDef, library: FunctionDefLibrary) -> Leaf:
    """Returns a leaf that calls a library function."""
    graph_def = GraphDef(library=library)
    dtypes = [argument.type for argument in function.signature.input_arg]
    for index, dtype in enumerate(dtypes):
        node = graph_def.node.add(name=f"in{index}", op="Placeholder")
        node.attr["dtype"].type = dtype
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(None).as_proto())
    names = [f"in{index}" for index in range(len(dtypes))]
    call = graph_def.node.add(name="call", op="StatefulPartitionedCall", input=names)
    call.attr["f"].func.name = function.signature.name
    call.attr["Tin"].list.type.extend(dtypes)
    results = [argument.type for argument in function.signature.output_arg]
    call.attr["Tout"].list.type.extend(results)
    graph_rewrites.prefix_functions(graph_def)
    return Leaf(
        "call",
        graph_def,
        tuple(f"{name}:0" for name in names),
        tuple(f"call:{index}" for index in range(len(results))),
    )


def is_sum(aggregate: Aggregate) -> bool:
    """Returns whether an aggregate adds each value tensor to its own accumulator."""
    leaf = aggregate.accumulate
    nodes = {node.name: node for node in leaf.graph_def.node}
    count = len(aggregate.zeros)
    if aggregate.num_values != count or len(leaf.outputs) != count:
        return False

    def source(tensor: str) -> str:
        name = graph_contents.node_name(tensor)
        while nodes[name].op == "Identity":
            waits.extend(nodes[name].input[1:])
            name = graph_contents.node_name(nodes[name].input[0])
        return name

    # For what runs before, such as an assertion.
    waits: list[str] = []
    for index, output in enumerate(leaf.outputs):
        total = nodes[source(output)]
        operands = {leaf.inputs[index], leaf.inputs[count + index]}
        if None in operands or total.op not in ("Add", "AddV2"):
            return False
        expected = {graph_contents.node_name(tensor) for tensor in operands}
        if {source(tensor) for tensor in total.input[:2]} != expected:
            return False
        waits.extend(total.input[2:])
        exact = tf.as_dtype(total.attr["T"].type)
        if exact in (tf.string, tf.float16, tf.bfloat16):
            return False
    return not waits
