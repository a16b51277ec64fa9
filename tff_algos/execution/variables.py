"""Replaces a leaf's variables by values that are passed from op to op.

Client work with a Keras model or another `tff.learning.models.VariableModel` keeps
weights and metrics in variables. Every read returns the value of the assignment before
it, so a graph whose order of accesses is fixed needs no variables:

    assign(v, x); assign(v, f(read(v))); return read(v)    -->    return f(x)

A branch or a loop that accesses a variable takes its value as another argument and
returns the new value; the reduction of a dataset has it in its state. The result has
the same values and no effects: it can be vectorized over clients like the work of a
functional model, and does not compute initial values that are never read.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import attrs
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2
from tensorflow.python.framework import function_def_to_graph

from tff_algos.execution import graph_rewrites, tracing, variable_ops
from tff_algos.execution.graph_rewrites import GraphDef
from tff_algos.execution.leaves import Leaf

_CALLS = frozenset(["PartitionedCall", "StatefulPartitionedCall"])
_BRANCHES = frozenset(["If", "StatelessIf", "Case", "StatelessCase"])
_BRANCH_NAMES = ("then", "else")
_LOOPS = frozenset(["While", "StatelessWhile"])


class NotLiftableError(Exception):
    """A variable is used in a way that needs a variable; the message says how."""


@attrs.frozen(eq=False)
class _Variable:
    """A variable; it stands for its handle while the graph is interpreted."""

    name: str
    spec: tf.TensorSpec


_T = TypeVar("_T")
_Value = tf.Tensor | _Variable
_State = dict[_Variable, tf.Tensor]


def lift(leaf: Leaf) -> Leaf:
    """Returns a leaf with the same values and without variables.

    Args:
      leaf: A leaf. Its nodes are in the order in which they access variables.

    Returns:
      The leaf; the same if it has no variables or if a variable's value cannot be
      followed, which its `obstacle` then says.
    """
    if not _has_variables(leaf.graph_def):
        return leaf
    try:
        return _lift(leaf)
    except NotLiftableError as error:
        return leaf.with_obstacle(str(error))


def _has_variables(graph_def: GraphDef) -> bool:
    nodes = graph_rewrites.all_nodes(graph_def)
    return any(node.op == "VarHandleOp" for node in nodes)


def _lift(leaf: Leaf) -> Leaf:
    nodes = {node.name: node for node in leaf.graph_def.node}
    used = [name for name in leaf.inputs if name is not None]
    specs = [_placeholder_spec(nodes[graph_rewrites.node_name(name)]) for name in used]

    def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
        leaf.add_functions(tf.compat.v1.get_default_graph())
        interpreter = _Interpreter(leaf.graph_def.library)
        graph = _Graph(leaf.graph_def, tuple(used), leaf.outputs)
        return interpreter.run(graph, tensors, {})

    function = tracing.concrete_function(run, specs)
    graph_def = function.graph.as_graph_def()
    _add_missing(graph_def, leaf.graph_def.library)
    outputs = tuple(tensor.name for tensor in function.outputs)
    graph_def = graph_rewrites.without_unused(graph_def, outputs)
    graph_rewrites.prefix_functions(graph_def)
    present = {node.name for node in graph_def.node}
    names = iter(tensor.name for tensor in function.inputs)
    return Leaf(
        leaf.name,
        graph_def,
        tuple(_if_present(next(names), present) if n else None for n in leaf.inputs),
        outputs,
    )


def _if_present(tensor: str, nodes: set[str]) -> str | None:
    return tensor if graph_rewrites.node_name(tensor) in nodes else None


def _placeholder_spec(node: node_def_pb2.NodeDef) -> tf.TensorSpec:
    shape = tf.TensorShape(node.attr["shape"].shape)
    return tf.TensorSpec(shape, tf.as_dtype(node.attr["dtype"].type))


def _add_missing(graph_def: GraphDef, library: function_pb2.FunctionDefLibrary) -> None:
    """Adds the functions that copied nodes call."""
    known = {function.signature.name for function in graph_def.library.function}
    graph_def.library.function.extend(
        function
        for function in library.function
        if function.signature.name not in known
    )


@attrs.frozen(eq=False)
class _Graph:
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
        roots = [*map(graph_rewrites.node_name, self.outputs), *self.effects]
        needed = graph_rewrites.ancestors(by_name, roots)
        return [node for node in self.graph_def.node if node.name in needed]


class _Interpreter:
    """Executes graphs symbolically: adds their ops to the current graph.

    Variables are followed; all other ops are copied.
    """

    def __init__(self, library: function_pb2.FunctionDefLibrary):
        self._definitions = {each.signature.name: each for each in library.function}
        self._graphs: dict[str, _Graph] = {}
        self._creating: dict[str, bool] = {}
        self._written: dict[str, set[int]] = {}
        # Functions are freed with their Python objects, so keep them to the end.
        self._traced: list[tf.types.experimental.ConcreteFunction] = []

    def run(
        self, graph: _Graph, arguments: Sequence[_Value], state: _State
    ) -> list[_Value]:
        """Executes a graph.

        Args:
          graph: The graph.
          arguments: A value for each of its inputs.
          state: The values of the variables; updated.

        Returns:
          The values of its outputs.
        """
        values = {
            graph_rewrites.node_name(name): [value]
            for name, value in zip(graph.inputs, arguments, strict=True)
        }

        def value_of(tensor: str) -> _Value:
            name, _, index = tensor.partition(":")
            return values[name][int(index or 0)]

        for node in graph.nodes:
            if node.name not in values:
                inputs = [
                    value_of(name) for name in node.input if not name.startswith("^")
                ]
                values[node.name] = self._outputs(node, inputs, state)
        return list(map(value_of, graph.outputs))

    def _outputs(
        self, node: node_def_pb2.NodeDef, inputs: Sequence[_Value], state: _State
    ) -> Sequence[_Value]:
        if node.op == "VarHandleOp":
            shape = tf.TensorShape(node.attr["shape"].shape)
            spec = tf.TensorSpec(shape, tf.as_dtype(node.attr["dtype"].type))
            return [_Variable(node.name, spec)]
        if node.op == "NoOp":
            return []
        if not self._is_affected(node, inputs):
            return _copy(node, inputs)
        if node.op in variable_ops.ASSIGNMENTS:
            _assign(node, inputs, state)
            return []
        if node.op in variable_ops.READS:
            value = _value(inputs[0], state)
            return [variable_ops.READS[node.op](node, value, *inputs[1:])]
        if node.op == "VarIsInitializedOp":
            return [tf.constant(inputs[0] in state)]
        if node.op == "Identity":
            return inputs
        if node.op in _CALLS or node.op in self._definitions:
            (name,) = graph_rewrites.called_functions(node)
            return self._call(name, inputs, state)
        if node.op in _BRANCHES:
            return self._branch(node, inputs, state)
        if node.op in _LOOPS:
            return self._loop(node, inputs, state)
        if node.op == "ReduceDataset":
            return self._reduce(node, inputs, state)
        raise NotLiftableError(f"{node.op} of a variable")

    def _is_affected(
        self, node: node_def_pb2.NodeDef, inputs: Iterable[_Value]
    ) -> bool:
        """Returns whether a node takes variables or calls functions that have any."""
        if any(isinstance(value, _Variable) for value in inputs):
            return True
        called = graph_rewrites.called_functions(node)
        return any(map(self._creates_variables, called))

    def _creates_variables(self, name: str) -> bool:
        if name not in self._creating:
            reached = graph_rewrites.reached_ops(name, self._definitions)
            self._creating[name] = "VarHandleOp" in reached
        return self._creating[name]

    def _graph_of(self, name: str) -> _Graph:
        if name not in self._graphs:
            self._graphs[name] = _function_graph(self._definitions[name])
        return self._graphs[name]

    def _call(
        self, name: str, arguments: Sequence[_Value], state: _State
    ) -> list[_Value]:
        return self.run(self._graph_of(name), arguments, state)

    def _branch(
        self, node: node_def_pb2.NodeDef, inputs: Sequence[_Value], state: _State
    ) -> Sequence[_Value]:
        chosen, *arguments = inputs
        branches = list(graph_rewrites.called_functions(node))
        if "If" in node.op:
            branches = [node.attr[f"{name}_branch"].func.name for name in _BRANCH_NAMES]
            known = tf.get_static_value(chosen)
            if known is not None:
                return self._call(branches[not known], arguments, state)
        variables = _variables(arguments)
        values = [_value(each, state) for each in variables]
        written = [v for v in variables if self._is_written(branches, arguments, v)]
        tensors = [each for each in arguments if not isinstance(each, _Variable)]
        results = []

        def trace(name: str) -> attr_value_pb2.NameAttrList:
            def run(*given: tf.Tensor) -> list[tf.Tensor]:
                current = dict(zip(variables, given[len(tensors) :], strict=True))
                filled = _filled(arguments, given[: len(tensors)])
                outputs = self._call(name, filled, current)
                results[:] = outputs
                return [*_tensors_only(outputs), *[current[v] for v in written]]

            return self._trace(run, map(tf.TensorSpec.from_tensor, [*tensors, *values]))

        functions = list(map(trace, branches))
        call = node_def_pb2.NodeDef()
        call.CopyFrom(node)
        if "If" in node.op:
            for name, function in zip(_BRANCH_NAMES, functions, strict=True):
                call.attr[f"{name}_branch"].func.CopyFrom(function)
        else:
            del call.attr["branches"].list.func[:]
            call.attr["branches"].list.func.extend(functions)
        num_results = len(results)
        _set_types(call, "Tin", [each.dtype for each in [*tensors, *values]])
        _extend_types(call, "Tout", written)
        _extend_shapes(call, num_results, written)
        outputs = _copy(call, [chosen, *tensors, *values])
        state.update(zip(written, outputs[num_results:], strict=True))
        return outputs[:num_results]

    def _is_written(
        self, functions: Iterable[str], arguments: Sequence[_Value], variable: _Variable
    ) -> bool:
        """Returns whether a function that is called assigns to a variable."""
        return any(
            index in self._written_arguments(name)
            for name in functions
            for index, argument in enumerate(arguments)
            if argument is variable
        )

    def _written_arguments(self, name: str) -> set[int]:
        """Returns the positions of the arguments to which a function may assign."""
        if name not in self._written:
            self._written[name] = self._find_written_arguments(name)
        return self._written[name]

    def _find_written_arguments(self, name: str) -> set[int]:
        graph = self._graph_of(name)
        sources = {
            graph_rewrites.node_name(tensor): index
            for index, tensor in enumerate(graph.inputs)
        }
        written = set()
        for node in graph.nodes:
            taken = [
                sources.get(graph_rewrites.node_name(tensor))
                for tensor in node.input
                if not tensor.startswith("^")
            ]
            if node.op == "Identity" and taken[0] is not None:
                sources[node.name] = taken[0]
            elif node.op in variable_ops.ASSIGNMENTS:
                count = variable_ops.ASSIGNMENTS[node.op].num_variables
                written.update(taken[:count])
            for called in graph_rewrites.called_functions(node):
                inner = self._written_arguments(called)
                own = self._passed(node, called, taken)
                written.update(own[i] for i in inner if i < len(own))
        return written - {None}

    def _passed(
        self, node: node_def_pb2.NodeDef, called: str, inputs: list[_T]
    ) -> list[_T | None]:
        """Returns what a node passes to a function that it calls, by position."""
        if node.op in _BRANCHES:
            return inputs[1:]
        if node.op != "ReduceDataset":
            return inputs
        first = 1 + len(node.attr["Tstate"].list.type)
        taken = len(self._definitions[called].signature.input_arg)
        elements = [None] * (taken - len(inputs) + 1)
        return [*inputs[1:first], *elements, *inputs[first:]]

    def _loop(
        self, node: node_def_pb2.NodeDef, inputs: Sequence[_Value], state: _State
    ) -> Sequence[_Value]:
        variables = _variables(inputs)
        values = [_value(each, state) for each in variables]
        shapes = [tf.TensorShape(s) for s in node.attr["output_shapes"].list.shape]
        shapes = shapes or [tf.TensorShape(None)] * len(inputs)
        specs = [
            tf.TensorSpec(shape, value.dtype)
            for shape, value in zip(shapes, inputs, strict=True)
            if not isinstance(value, _Variable)
        ]
        num_tensors = len(specs)
        specs += [each.spec for each in variables]

        def start(given: Sequence[tf.Tensor]) -> tuple[list[_Value], _State]:
            current = dict(zip(variables, given[num_tensors:], strict=True))
            return _filled(inputs, given[:num_tensors]), current

        def condition(*given: tf.Tensor) -> list[tf.Tensor]:
            arguments, current = start(given)
            before = dict(current)
            result = self._call(node.attr["cond"].func.name, arguments, current)
            if any(current[each] is not before[each] for each in variables):
                raise NotLiftableError("a loop's condition that assigns to a variable")
            return _tensors_only(result)

        def body(*given: tf.Tensor) -> list[tf.Tensor]:
            arguments, current = start(given)
            results = self._call(node.attr["body"].func.name, arguments, current)
            for old, new in zip(arguments, results, strict=True):
                if isinstance(old, _Variable) and new is not old:
                    raise NotLiftableError("a loop that exchanges variables")
            tensors = [each for each in results if not isinstance(each, _Variable)]
            return [*tensors, *[current[each] for each in variables]]

        loop = node_def_pb2.NodeDef()
        loop.CopyFrom(node)
        loop.attr["cond"].func.CopyFrom(self._trace(condition, specs))
        loop.attr["body"].func.CopyFrom(self._trace(body, specs))
        _set_types(loop, "T", [spec.dtype for spec in specs])
        _set_shapes(loop, [spec.shape for spec in specs])
        tensors = [each for each in inputs if not isinstance(each, _Variable)]
        outputs = _copy(loop, [*tensors, *values])
        state.update(zip(variables, outputs[num_tensors:], strict=True))
        return _filled(inputs, outputs[:num_tensors])

    def _reduce(
        self, node: node_def_pb2.NodeDef, inputs: Sequence[_Value], state: _State
    ) -> Sequence[_Value]:
        num_states = len(node.attr["Tstate"].list.type)
        data, *initial = inputs[: 1 + num_states]
        others = inputs[1 + num_states :]
        if isinstance(data, _Variable) or _variables(initial):
            raise NotLiftableError("a reduction with a variable as its state")
        name = node.attr["f"].func.name
        specs = list(graph_rewrites.argument_specs(self._definitions[name]))
        elements = specs[num_states : len(specs) - len(others)]
        initial_specs = [
            tf.TensorSpec(tf.TensorShape(shape), value.dtype)
            for shape, value in zip(
                node.attr["output_shapes"].list.shape, initial, strict=True
            )
        ]
        positions = range(len(specs) - len(others), len(specs))
        assigned = {
            others[i - positions.start]
            for i in self._written_arguments(name)
            if i in positions
        }
        variables = _variables(others)
        carried = [each for each in variables if each in assigned]
        read = [each for each in variables if each not in assigned]
        tensors = [each for each in others if not isinstance(each, _Variable)]
        sizes = [num_states, len(carried), len(elements), len(tensors), len(read)]

        def step(*given: tf.Tensor) -> list[tf.Tensor]:
            remaining = iter(given)
            old, changing, batch, plain, constant = (
                list(itertools.islice(remaining, size)) for size in sizes
            )
            current = dict(zip([*carried, *read], [*changing, *constant], strict=True))
            arguments = [*old, *batch, *_filled(others, plain)]
            new = self._call(name, arguments, current)
            return [*_tensors_only(new), *[current[each] for each in carried]]

        state_specs = [*initial_specs, *[each.spec for each in carried]]
        other_specs = [
            *map(tf.TensorSpec.from_tensor, tensors),
            *[each.spec for each in read],
        ]
        function = self._trace(step, [*state_specs, *elements, *other_specs])
        reduction = node_def_pb2.NodeDef()
        reduction.CopyFrom(node)
        reduction.attr["f"].func.CopyFrom(function)
        _set_types(reduction, "Tstate", [spec.dtype for spec in state_specs])
        _set_types(reduction, "Targuments", [spec.dtype for spec in other_specs])
        _set_types(reduction, "output_types", [spec.dtype for spec in state_specs])
        _set_shapes(reduction, [spec.shape for spec in state_specs])
        outputs = _copy(
            reduction,
            [
                data,
                *initial,
                *[_value(each, state) for each in carried],
                *tensors,
                *[_value(each, state) for each in read],
            ],
        )
        state.update(zip(carried, outputs[num_states:], strict=True))
        return outputs[:num_states]

    def _trace(
        self, run: Callable[..., list[tf.Tensor]], specs: Iterable[tf.TensorSpec]
    ) -> attr_value_pb2.NameAttrList:
        function = tracing.concrete_function(run, list(specs))
        self._traced.append(function)
        function.add_to_graph(tf.compat.v1.get_default_graph())
        name = function.function_def.signature.name
        return attr_value_pb2.NameAttrList(name=name)


def _function_graph(definition: function_pb2.FunctionDef) -> _Graph:
    """Returns the graph of a function in the current graph's scope."""
    graph_def, flat = function_def_to_graph.function_def_to_graph_def(definition)
    graph_rewrites.sort(graph_def)
    signature = definition.signature
    return _Graph(
        graph_def,
        tuple(argument.name for argument in signature.input_arg),
        tuple(flat[definition.ret[each.name]] for each in signature.output_arg),
        tuple(definition.control_ret[name] for name in signature.control_output),
    )


def _copy(
    node: node_def_pb2.NodeDef, inputs: Sequence[tf.Tensor]
) -> Sequence[tf.Tensor]:
    """Adds a node to the current graph."""
    operation = tf.compat.v1.get_default_graph()._create_op_internal(
        node.op, inputs, name=node.name, attrs=dict(node.attr)
    )
    if node.device:
        operation._set_device(node.device)
    return operation.outputs


def _variables(values: Iterable[_Value]) -> list[_Variable]:
    """Returns the variables among values, each once."""
    return list(dict.fromkeys(each for each in values if isinstance(each, _Variable)))


def _filled(pattern: Sequence[_Value], tensors: Sequence[tf.Tensor]) -> list[_Value]:
    """Returns a copy of values with the tensors replaced in order."""
    remaining = iter(tensors)
    return [
        each if isinstance(each, _Variable) else next(remaining) for each in pattern
    ]


def _tensors_only(values: Sequence[_Value]) -> list[tf.Tensor]:
    if _variables(values):
        raise NotLiftableError("a function that returns a variable")
    return list(values)


def _value(variable: _Variable, state: _State) -> tf.Tensor:
    if variable not in state:
        raise NotLiftableError(f"{variable.name} before its initialization")
    return state[variable]


def _set_types(
    node: node_def_pb2.NodeDef, attribute: str, dtypes: Iterable[tf.DType]
) -> None:
    types = node.attr[attribute].list
    types.Clear()
    node.attr[attribute].list.SetInParent()
    types.type.extend(dtype.as_datatype_enum for dtype in dtypes)


def _set_shapes(node: node_def_pb2.NodeDef, shapes: Iterable[tf.TensorShape]) -> None:
    del node.attr["output_shapes"].list.shape[:]
    node.attr["output_shapes"].list.shape.extend(each.as_proto() for each in shapes)


def _extend_types(node, attribute, variables) -> None:
    node.attr[attribute].list.type.extend(
        each.spec.dtype.as_datatype_enum for each in variables
    )


def _extend_shapes(node, num_results: int, variables: Sequence[_Variable]) -> None:
    shapes = node.attr["output_shapes"].list.shape
    if not shapes:
        shapes.extend([tf.TensorShape(None).as_proto()] * num_results)
    shapes.extend(each.spec.shape.as_proto() for each in variables)


def _assign(
    node: node_def_pb2.NodeDef, inputs: Sequence[_Value], state: _State
) -> None:
    assignment = variable_ops.ASSIGNMENTS[node.op]
    changed = inputs[: assignment.num_variables]
    if node.op == "AssignVariableOp":
        old = [state.get(changed[0])]
    else:
        old = [_value(each, state) for each in changed]
    others = inputs[assignment.num_variables :]
    for variable, value in zip(
        changed, assignment.new_values(node, *old, *others), strict=True
    ):
        value.set_shape(variable.spec.shape)
        state[variable] = value
