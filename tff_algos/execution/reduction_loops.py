"""Replaces reductions of datasets by loops in the graph.

The graph is changed as a proto, because reductions may also be inside functions, which
graph-building APIs cannot change.
"""

import itertools
from collections.abc import Mapping, Sequence

import attrs
import tensorflow as tf
from tensorflow.core.framework import (
    function_pb2,
    node_def_pb2,
    tensor_shape_pb2,
)

from tff_algos.execution import client_batches
from tff_algos.execution.graph_rewrites import (
    GraphDef,
    Nodes,
    argument_shape,
    node_name,
)


def reduce_by_loops(graph_def: GraphDef) -> None:
    """Replaces every ReduceDataset by a While loop over an iterator.

    ReduceDataset instantiates its function on every call, and always on the CPU, which
    costs more than a step of a small model. A loop is part of the graph, is optimized
    with it, and runs on its device. If a ScanDataset is reduced, as in a `for` loop
    over a dataset in a `tf.function`, it becomes part of the loop.
    """
    signatures = {
        function.signature.name: function for function in graph_def.library.function
    }
    loops = _LoopLibrary(signatures)
    loops.replace_in(graph_def.node)
    for function in graph_def.library.function:
        replaced = loops.replace_in(function.node_def)
        if replaced:
            _rename_outputs(function, replaced)
    graph_def.library.function.extend(loops.functions)


def _rename_outputs(function: function_pb2.FunctionDef, nodes: set[str]) -> None:
    """Renames inputs from `components` to `output`, the name of a call's results."""

    def renamed(tensor: str) -> str:
        name, _, rest = tensor.partition(":")
        if name in nodes and rest.startswith("components:"):
            return f"{name}:output:{rest.removeprefix('components:')}"
        return tensor

    for node in function.node_def:
        inputs = [renamed(tensor) for tensor in node.input]
        del node.input[:]
        node.input.extend(inputs)
    for key, tensor in function.ret.items():
        function.ret[key] = renamed(tensor)


class _LoopLibrary:
    """Creates the functions of the loops that replace ReduceDataset ops."""

    def __init__(self, signatures: Mapping[str, function_pb2.FunctionDef]):
        self._signatures = dict(signatures)
        self.functions: list[function_pb2.FunctionDef] = []

    def replace_in(self, nodes: Nodes) -> set[str]:
        """Replaces all reductions of a graph; returns the nodes' names."""
        scans = {node.name: node for node in nodes if node.op == "ScanDataset"}
        reductions = [node for node in nodes if node.op == "ReduceDataset"]
        for node in reductions:
            scan = scans.get(node_name(node.input[0]))
            self._replace(node, [_Fold.of(scan)] if scan is not None else [])
        return {node.name for node in reductions}

    def _replace(self, node: node_def_pb2.NodeDef, scans: "list[_Fold]") -> None:
        """Turns a ReduceDataset node into a call of a loop with the same results."""
        name = f"reduce{len(self.functions)}_{node.attr['f'].func.name}"
        folds = [*scans, _Fold.of(node)]
        step = folds[-1].function
        if scans:
            step = f"{name}_step"
            composed = _composed(step, folds, self._signatures)
            self._signatures[step] = composed
            self.functions.append(composed)
        states = [dtype for fold in folds for dtype in fold.states]
        others = [dtype for fold in folds for dtype in fold.others]
        shapes = [shape for fold in folds for shape in fold.state_shapes]
        self._add_loop(name, step, states, others, shapes, len(folds[-1].states))
        inputs = [
            folds[0].dataset,
            *[tensor for fold in folds for tensor in fold.initial],
            *[tensor for fold in folds for tensor in fold.captured],
            *[tensor for tensor in node.input if tensor.startswith("^")],
        ]
        node.op = "StatefulPartitionedCall"
        node.attr.clear()
        del node.input[:]
        node.input.extend(inputs)
        node.attr["f"].func.name = name
        _set_types(node, "Tin", [tf.variant.as_datatype_enum, *states, *others])
        _set_types(node, "Tout", folds[-1].states)

    def _add_loop(self, name, step, states, others, shapes, num_results) -> None:
        function = self._signatures[step]
        arguments = function.signature.input_arg
        elements = arguments[len(states) : len(arguments) - len(others)]
        element_types = [argument.type for argument in elements]
        element_shapes = [
            argument_shape(function, len(states) + index)
            for index in range(len(elements))
        ]
        stateful = function.signature.is_stateful
        loop = [
            tf.bool.as_datatype_enum,
            tf.resource.as_datatype_enum,
            tf.variant.as_datatype_enum,
            *states,
            *others,
        ]
        data = (element_types, element_shapes)
        self.functions.append(_condition(f"{name}_condition", loop))
        self.functions.append(
            _body(f"{name}_body", step, stateful, loop, len(states), data)
        )
        self.functions.append(
            _loop(name, loop, states, others, shapes, data, num_results)
        )


@attrs.frozen
class _Fold:
    """The reduction or scan of a ReduceDataset or ScanDataset node.

    Attributes:
      function: The function of the state, the element's components and `captured`.
      dataset: The dataset.
      initial: The tensors of the initial state.
      captured: The tensors that the function captures.
      states: The types of the state.
      others: The types of `captured`.
      state_shapes: The static shapes of the state.
    """

    function: str
    dataset: str
    initial: list[str]
    captured: list[str]
    states: list[int]
    others: list[int]
    state_shapes: list[tensor_shape_pb2.TensorShapeProto]

    @classmethod
    def of(cls, node: node_def_pb2.NodeDef) -> "_Fold":
        states = list(node.attr["Tstate"].list.type)
        others = list(node.attr["Targuments"].list.type)
        data = [tensor for tensor in node.input if not tensor.startswith("^")]
        if node.op == "ReduceDataset":
            shapes = list(node.attr["output_shapes"].list.shape)
        else:
            shapes = [tf.TensorShape(None).as_proto()] * len(states)
        last = 1 + len(states)
        return cls(
            node.attr["f"].func.name,
            data[0],
            data[1:last],
            data[last:],
            states,
            others,
            shapes,
        )


def _composed(
    name: str,
    folds: Sequence[_Fold],
    signatures: Mapping[str, function_pb2.FunctionDef],
) -> function_pb2.FunctionDef:
    """Returns a step of a scan followed by a step of the reduction of its output."""
    scan, reduction = folds
    first = signatures[scan.function]
    count = len(first.signature.input_arg) - len(scan.states) - len(scan.others)
    elements = [arg.type for arg in first.signature.input_arg[len(scan.states) :]]
    types = [*scan.states, *reduction.states, *elements[:count]]
    types += [*scan.others, *reduction.others]
    function = _function(name, types, [*scan.states, *reduction.states])
    names = iter([f"in{index}" for index in range(len(types))])
    scan_state, state, element, scan_others, others = (
        list(itertools.islice(names, size))
        for size in (
            len(scan.states),
            len(reduction.states),
            count,
            len(scan.others),
            len(reduction.others),
        )
    )
    _call(function, "scan", first, [*scan_state, *element, *scan_others])
    given = range(len(scan.states), len(first.signature.output_arg))
    outputs = [f"scan:output:{index}" for index in given]
    second = signatures[reduction.function]
    call = _call(function, "reduce", second, [*state, *outputs, *others])
    call.input.append("^scan")
    for index in range(len(scan.states)):
        function.ret[f"out{index}"] = f"scan:output:{index}"
    for index in range(len(reduction.states)):
        function.ret[f"out{len(scan.states) + index}"] = f"reduce:output:{index}"
    _must_run(function, "scan")
    _must_run(function, "reduce")
    for index in range(count):
        shape = argument_shape(first, len(scan.states) + index)
        position = len(scan.states) + len(reduction.states) + index
        function.arg_attr[position].attr["_output_shapes"].list.shape.append(shape)
    return function


def _call(
    function: function_pb2.FunctionDef,
    name: str,
    called: function_pb2.FunctionDef,
    inputs: Sequence[str],
) -> node_def_pb2.NodeDef:
    """Adds a call of another function to `function`."""
    call = function.node_def.add(name=name, op="StatefulPartitionedCall", input=inputs)
    call.attr["f"].func.name = called.signature.name
    _set_types(call, "Tin", [argument.type for argument in called.signature.input_arg])
    _set_types(
        call, "Tout", [argument.type for argument in called.signature.output_arg]
    )
    return call


def _condition(name: str, types: list[int]) -> function_pb2.FunctionDef:
    function = _function(name, types, [types[0]])
    keep = function.node_def.add(name="keep", op="Identity", input=["in0"])
    keep.attr["T"].type = types[0]
    function.ret["out0"] = "keep:output:0"
    return function


def _body(name, step, stateful, types, num_states, data) -> function_pb2.FunctionDef:
    """Returns the loop body; it fetches the next element during the current step."""
    function = _function(name, types, types)
    variables = [f"in{index}" for index in range(len(types))]
    states, others = variables[3 : 3 + num_states], variables[3 + num_states :]
    value = function.node_def.add(name="value", op="OptionalGetValue", input=["in2"])
    _set_data(value, data)
    elements = [f"value:components:{index}" for index in range(len(data[0]))]
    call = function.node_def.add(
        name="step",
        op="StatefulPartitionedCall" if stateful else "PartitionedCall",
        input=[*states, *elements, *others],
    )
    call.attr["f"].func.name = step
    _set_types(
        call, "Tin", types[3 : 3 + num_states] + data[0] + types[3 + num_states :]
    )
    _set_types(call, "Tout", types[3 : 3 + num_states])
    following = function.node_def.add(
        name="following", op="IteratorGetNextAsOptional", input=["in1"]
    )
    _set_data(following, data)
    function.node_def.add(
        name="more", op="OptionalHasValue", input=["following:optional:0"]
    )
    function.ret["out0"] = "more:has_value:0"
    function.ret["out1"] = "in1"
    function.ret["out2"] = "following:optional:0"
    for index in range(num_states):
        function.ret[f"out{3 + index}"] = f"step:output:{index}"
    for index, other in enumerate(others, start=3 + num_states):
        function.ret[f"out{index}"] = other
    if stateful:
        _must_run(function, "step")
    _must_run(function, "following")
    return function


def _loop(
    name, types, states, others, shapes, data, num_results
) -> function_pb2.FunctionDef:
    """Returns the loop, whose results are the state's last `num_results` tensors."""
    inputs = [tf.variant.as_datatype_enum, *states, *others]
    dropped = len(states) - num_results
    function = _function(name, inputs, states[dropped:])
    iterator = function.node_def.add(name="iterator", op="AnonymousIteratorV3")
    _set_data(iterator, data)
    plain = function.node_def.add(name="plain", op="OptionsDataset", input=["in0"])
    plain.attr["serialized_options"].s = client_batches.serialized_options()
    _set_data(plain, data)
    start = function.node_def.add(
        name="start", op="MakeIterator", input=["plain:handle:0", "iterator:handle:0"]
    )
    first = function.node_def.add(
        name="first",
        op="IteratorGetNextAsOptional",
        input=["iterator:handle:0", f"^{start.name}"],
    )
    _set_data(first, data)
    function.node_def.add(name="any", op="OptionalHasValue", input=["first:optional:0"])
    loop = function.node_def.add(
        name="loop",
        op="While",
        input=["any:has_value:0", "iterator:handle:0", "first:optional:0"]
        + [f"in{index}" for index in range(1, len(inputs))],
    )
    _set_types(loop, "T", types)
    loop.attr["cond"].func.name = f"{name}_condition"
    loop.attr["body"].func.name = f"{name}_body"
    loop.attr["parallel_iterations"].i = 10
    loop.attr["_lower_using_switch_merge"].b = True
    unknown = tf.TensorShape(None).as_proto()
    every_shape = [
        tf.TensorShape([]).as_proto(),
        *([unknown] * 2),
        *shapes,
        *([unknown] * len(others)),
    ]
    loop.attr["output_shapes"].list.shape.extend(every_shape)
    for index in range(num_results):
        function.ret[f"out{index}"] = f"loop:output:{3 + dropped + index}"
    _must_run(function, "loop")
    return function


def _function(name: str, inputs: list[int], outputs: list[int]):
    function = function_pb2.FunctionDef()
    function.signature.name = name
    function.signature.is_stateful = True
    for index, dtype in enumerate(inputs):
        function.signature.input_arg.add(name=f"in{index}", type=dtype)
    for index, dtype in enumerate(outputs):
        function.signature.output_arg.add(name=f"out{index}", type=dtype)
    return function


def _must_run(function: function_pb2.FunctionDef, node: str) -> None:
    function.signature.control_output.append(node)
    function.control_ret[node] = node


def _set_types(node: node_def_pb2.NodeDef, attribute: str, types: list[int]) -> None:
    node.attr[attribute].list.type.extend(types)
    if not types:
        node.attr[attribute].list.SetInParent()


def _set_data(node: node_def_pb2.NodeDef, data) -> None:
    types, shapes = data
    _set_types(node, "output_types", types)
    node.attr["output_shapes"].list.shape.extend(shapes)
