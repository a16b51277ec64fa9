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

import itertools
from collections.abc import Callable, Iterable, Sequence

import attrs
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2

from tff_algos.execution import (
    graph_contents,
    graph_rewrites,
    tracing,
    variable_functions,
    variable_ops,
)
from tff_algos.execution.graph_contents import LOOPS, GraphDef
from tff_algos.execution.leaves import Leaf

_CALLS = frozenset(["PartitionedCall", "StatefulPartitionedCall"])
_BRANCH_NAMES = ("then", "else")


class NotLiftableError(Exception):
    """A variable is used in a way that needs a variable; the message says how."""


@attrs.frozen(eq=False)
class _Variable:
    """A variable; it stands for its handle while the graph is interpreted."""

    name: str
    spec: tf.TensorSpec


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
    nodes = graph_contents.all_nodes(graph_def)
    return any(node.op == "VarHandleOp" for node in nodes)


def _lift(leaf: Leaf) -> Leaf:
    nodes = {node.name: node for node in leaf.graph_def.node}
    used = [name for name in leaf.inputs if name is not None]
    specs = [_placeholder_spec(nodes[graph_contents.node_name(name)]) for name in used]

    def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
        leaf.add_functions(tf.compat.v1.get_default_graph())
        interpreter = _Interpreter(leaf.graph_def.library)
        graph = variable_functions.Graph(leaf.graph_def, tuple(used), leaf.outputs)
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
    return tensor if graph_contents.node_name(tensor) in nodes else None


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


class _Interpreter:
    """Executes graphs symbolically: adds their ops to the current graph.

    Variables are followed; all other ops are copied.
    """

    def __init__(self, library: function_pb2.FunctionDefLibrary):
        self._functions = variable_functions.Functions(library)
        # Functions are freed with their Python objects, so keep them to the end.
        self._traced: list[tf.types.experimental.ConcreteFunction] = []

    def run(
        self,
        graph: variable_functions.Graph,
        arguments: Sequence[_Value],
        state: _State,
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
            graph_contents.node_name(name): [value]
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
        if node.op in _CALLS or node.op in self._functions.definitions:
            (name,) = graph_contents.called_functions(node)
            return self._call(name, inputs, state)
        if node.op in variable_functions.BRANCHES:
            return self._branch(node, inputs, state)
        if node.op in LOOPS:
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
        called = graph_contents.called_functions(node)
        return any(map(self._functions.creates_variables, called))

    def _call(
        self, name: str, arguments: Sequence[_Value], state: _State
    ) -> list[_Value]:
        return self.run(self._functions.graph_of(name), arguments, state)

    def _branch(
        self, node: node_def_pb2.NodeDef, inputs: Sequence[_Value], state: _State
    ) -> Sequence[_Value]:
        chosen, *arguments = inputs
        branches = list(graph_contents.called_functions(node))
        if "If" in node.op:
            branches = [node.attr[f"{name}_branch"].func.name for name in _BRANCH_NAMES]
            known = tf.get_static_value(chosen)
            if known is not None:
                return self._call(branches[not known], arguments, state)
        variables = _variables(arguments)
        assign_to = self._functions.assign_to
        written = [v for v in variables if assign_to(branches, arguments, v)]
        tensors = _without_variables(arguments)
        given = [*tensors, *[_value(each, state) for each in variables]]

        def trace(name: str) -> attr_value_pb2.NameAttrList:
            def run(*given: tf.Tensor) -> list[tf.Tensor]:
                current = dict(zip(variables, given[len(tensors) :], strict=True))
                filled = _filled(arguments, given[: len(tensors)])
                outputs = _tensors_only(self._call(name, filled, current))
                return [*outputs, *[current[v] for v in written]]

            return self._trace(run, map(tf.TensorSpec.from_tensor, given))

        num_results = len(node.attr["Tout"].list.type)
        call = _calling(node, list(map(trace, branches)))
        _set_types(call, "Tin", [each.dtype for each in given])
        _extend_types(call, "Tout", written)
        _extend_shapes(call, num_results, written)
        outputs = _copy(call, [chosen, *given])
        state.update(zip(written, outputs[num_results:], strict=True))
        return outputs[:num_results]

    def _loop(
        self, node: node_def_pb2.NodeDef, inputs: Sequence[_Value], state: _State
    ) -> Sequence[_Value]:
        variables = _variables(inputs)
        specs = _loop_specs(node, inputs)
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
            return [
                *_without_variables(results),
                *[current[each] for each in variables],
            ]

        loop = node_def_pb2.NodeDef()
        loop.CopyFrom(node)
        loop.attr["cond"].func.CopyFrom(self._trace(condition, specs))
        loop.attr["body"].func.CopyFrom(self._trace(body, specs))
        _set_types(loop, "T", [spec.dtype for spec in specs])
        _set_shapes(loop, [spec.shape for spec in specs])
        values = [_value(each, state) for each in variables]
        outputs = _copy(loop, [*_without_variables(inputs), *values])
        state.update(zip(variables, outputs[num_tensors:], strict=True))
        return _filled(inputs, outputs[:num_tensors])

    def _reduce(
        self, node: node_def_pb2.NodeDef, inputs: Sequence[_Value], state: _State
    ) -> Sequence[_Value]:
        num_states = len(node.attr["Tstate"].list.type)
        (data, *initial), others = inputs[: 1 + num_states], inputs[1 + num_states :]
        if _variables([data, *initial]):
            raise NotLiftableError("a reduction with a variable as its state")
        name = node.attr["f"].func.name
        elements = self._element_specs(node, len(others))
        # What the step does not change is no state: clients can share it.
        passed = [None] * (num_states + len(elements)) + list(others)
        variables, assign_to = _variables(others), self._functions.assign_to
        carried = [each for each in variables if assign_to([name], passed, each)]
        read = [each for each in variables if each not in carried]
        tensors = _without_variables(others)
        sizes = [num_states, len(carried), len(elements), len(tensors), len(read)]

        def step(*given: tf.Tensor) -> list[tf.Tensor]:
            remaining = iter(given)
            old, changing, batch, plain, constant = (
                list(itertools.islice(remaining, size)) for size in sizes
            )
            current = dict(zip([*carried, *read], [*changing, *constant], strict=True))
            arguments = [*old, *batch, *_filled(others, plain)]
            new = _tensors_only(self._call(name, arguments, current))
            return [*new, *[current[each] for each in carried]]

        states = _state_specs(node) + [each.spec for each in carried]
        constants = list(map(tf.TensorSpec.from_tensor, tensors))
        constants += [each.spec for each in read]
        reduction = node_def_pb2.NodeDef()
        reduction.CopyFrom(node)
        function = self._trace(step, [*states, *elements, *constants])
        reduction.attr["f"].func.CopyFrom(function)
        for attribute in ("Tstate", "output_types"):
            _set_types(reduction, attribute, [spec.dtype for spec in states])
        _set_types(reduction, "Targuments", [spec.dtype for spec in constants])
        _set_shapes(reduction, [spec.shape for spec in states])
        first = [_value(each, state) for each in carried]
        known = [_value(each, state) for each in read]
        outputs = _copy(reduction, [data, *initial, *first, *tensors, *known])
        state.update(zip(carried, outputs[num_states:], strict=True))
        return outputs[:num_states]

    def _element_specs(
        self, node: node_def_pb2.NodeDef, num_others: int
    ) -> Sequence[tf.TensorSpec]:
        """Returns the specs of the elements of a reduction's dataset."""
        definition = self._functions.definitions[node.attr["f"].func.name]
        specs = graph_contents.argument_specs(definition)
        num_states = len(node.attr["Tstate"].list.type)
        return specs[num_states : len(specs) - num_others]

    def _trace(
        self, run: Callable[..., list[tf.Tensor]], specs: Iterable[tf.TensorSpec]
    ) -> attr_value_pb2.NameAttrList:
        function = tracing.concrete_function(run, list(specs))
        self._traced.append(function)
        function.add_to_graph(tf.compat.v1.get_default_graph())
        name = function.function_def.signature.name
        return attr_value_pb2.NameAttrList(name=name)


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


def _without_variables(values: Sequence[_Value]) -> list[tf.Tensor]:
    return [each for each in values if not isinstance(each, _Variable)]


def _loop_specs(
    node: node_def_pb2.NodeDef, inputs: Sequence[_Value]
) -> list[tf.TensorSpec]:
    """Returns the specs of a loop's tensors, without those of variables."""
    shapes = [tf.TensorShape(shape) for shape in node.attr["output_shapes"].list.shape]
    shapes = shapes or [tf.TensorShape(None)] * len(inputs)
    return [
        tf.TensorSpec(shape, value.dtype)
        for shape, value in zip(shapes, inputs, strict=True)
        if not isinstance(value, _Variable)
    ]


def _state_specs(node: node_def_pb2.NodeDef) -> list[tf.TensorSpec]:
    """Returns the specs of a reduction's state."""
    return [
        tf.TensorSpec(tf.TensorShape(shape), tf.as_dtype(dtype))
        for shape, dtype in zip(
            node.attr["output_shapes"].list.shape,
            node.attr["Tstate"].list.type,
            strict=True,
        )
    ]


def _calling(
    node: node_def_pb2.NodeDef, functions: Sequence[attr_value_pb2.NameAttrList]
) -> node_def_pb2.NodeDef:
    """Returns a copy of a branch that chooses between other functions."""
    call = node_def_pb2.NodeDef()
    call.CopyFrom(node)
    if "If" in node.op:
        for name, function in zip(_BRANCH_NAMES, functions, strict=True):
            call.attr[f"{name}_branch"].func.CopyFrom(function)
    else:
        del call.attr["branches"].list.func[:]
        call.attr["branches"].list.func.extend(functions)
    return call


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
