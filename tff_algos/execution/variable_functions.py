"""The functions of a leaf's library: their graphs, and what they do to variables."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import attrs
from tensorflow.core.framework import function_pb2, node_def_pb2
from tensorflow.python.framework import function_def_to_graph

from tff_algos.execution import graph_contents, graph_rewrites, variable_ops
from tff_algos.execution.graph_contents import GraphDef

BRANCHES = frozenset(["If", "StatelessIf", "Case", "StatelessCase"])

_T = TypeVar("_T")


@attrs.frozen(eq=False)
class Graph:
    """Nodes to interpret.

    Attributes:
      graph_def: The nodes in the order of their execution.
      inputs: The names of the tensors that are fed.
      outputs: The names of the tensors to return.
      effects: The names of further nodes that must run.
    """

    graph_def: GraphDef
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    effects: tuple[str, ...] = ()

    @functools.cached_property
    def nodes(self) -> list[node_def_pb2.NodeDef]:
        """The nodes that outputs and effects need."""
        by_name = {node.name: node for node in self.graph_def.node}
        roots = [*map(graph_contents.node_name, self.outputs), *self.effects]
        needed = graph_contents.ancestors(by_name, roots)
        return [node for node in self.graph_def.node if node.name in needed]


def _function_graph(definition: function_pb2.FunctionDef) -> Graph:
    """Returns the graph of a function in the current graph's scope."""
    graph_def, flat = function_def_to_graph.function_def_to_graph_def(definition)
    graph_rewrites.sort(graph_def)
    signature = definition.signature
    return Graph(
        graph_def,
        tuple(argument.name for argument in signature.input_arg),
        tuple(flat[definition.ret[each.name]] for each in signature.output_arg),
        tuple(definition.control_ret[name] for name in signature.control_output),
    )


class Functions:
    """The functions of a library, by name; what is found out is kept."""

    def __init__(self, library: function_pb2.FunctionDefLibrary):
        self.definitions = {each.signature.name: each for each in library.function}
        self._graphs: dict[str, Graph] = {}
        self._creating: dict[str, bool] = {}
        self._written: dict[str, set[int]] = {}

    def creates_variables(self, name: str) -> bool:
        """Returns whether a function creates variables."""
        if name not in self._creating:
            reached = graph_contents.reached_ops(name, self.definitions)
            self._creating[name] = "VarHandleOp" in reached
        return self._creating[name]

    def graph_of(self, name: str) -> Graph:
        """Returns the graph of a function."""
        if name not in self._graphs:
            self._graphs[name] = _function_graph(self.definitions[name])
        return self._graphs[name]

    def assign_to(
        self, names: Iterable[str], arguments: Sequence[Any], variable: Any
    ) -> bool:
        """Returns whether a function assigns to one of its arguments.

        Args:
          names: The functions.
          arguments: Their arguments.
          variable: One of the arguments.
        """
        return any(
            index in self.written_arguments(name)
            for name in names
            for index, argument in enumerate(arguments)
            if argument is variable
        )

    def written_arguments(self, name: str) -> set[int]:
        """Returns the positions of the arguments to which a function may assign."""
        if name not in self._written:
            self._written[name] = self._find_written_arguments(name)
        return self._written[name]

    def _find_written_arguments(self, name: str) -> set[int]:
        graph = self.graph_of(name)
        sources = {
            graph_contents.node_name(tensor): index
            for index, tensor in enumerate(graph.inputs)
        }
        written = set()
        for node in graph.nodes:
            taken = [
                sources.get(graph_contents.node_name(tensor))
                for tensor in node.input
                if not tensor.startswith("^")
            ]
            if node.op == "Identity" and taken[0] is not None:
                sources[node.name] = taken[0]
            elif node.op in variable_ops.ASSIGNMENTS:
                count = variable_ops.ASSIGNMENTS[node.op].num_variables
                written.update(taken[:count])
            for called in graph_contents.called_functions(node):
                inner = self.written_arguments(called)
                own = self._passed(node, called, taken)
                written.update(own[i] for i in inner if i < len(own))
        return written - {None}

    def _passed(
        self, node: node_def_pb2.NodeDef, called: str, inputs: list[_T]
    ) -> list[_T | None]:
        """Returns what a node passes to a function that it calls, by position."""
        if node.op in BRANCHES:
            return inputs[1:]
        if node.op != "ReduceDataset":
            return inputs
        first = 1 + len(node.attr["Tstate"].list.type)
        taken = len(self.definitions[called].signature.input_arg)
        elements = [None] * (taken - len(inputs) + 1)
        return [*inputs[1:first], *elements, *inputs[first:]]
