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

from tff_algos.execution import data_options
from tff_algos.execution.graph_contents import (
    GraphDef,
    Nodes,
    argument_shape,
    functions_by_name,
    node_name,
)
from tff_algos.execution.graph_rewrites import rename_outputs


def merge_scans(graph_def: GraphDef) -> None:
    """Merges every reduction of a ScanDataset with the scan.

    A `for` loop over a dataset in a `tf.function` is the reduction of a scan whose state
    are the loop's variables.
    """
    functions = functions_by_name(graph_def)
    for number, scope in enumerate([graph_def, *functions.values()]):
        nodes = scope.node if isinstance(scope, GraphDef) else scope.node_def
        for name in [node.name for node in nodes if node.op == "ReduceDataset"]:
            # `_remove` replaces all nodes by copies.
            by_name = {node.name: node for node in nodes}
            node, data = by_name[name], node_name(by_name[name].input[0])
            scan = by_name.get(data)
            if scan is not None and scan.op == "ScanDataset":
                merged = _merge(node, scan, functions, number)
                graph_def.library.function.add().CopyFrom(merged)
                _remove(scope, data, name)


def _remove(
    scope: GraphDef | function_pb2.FunctionDef, name: str, replacement: str
) -> None:
    """Removes a node without users; what had to wait for it waits for another."""
    nodes = scope.node if isinstance(scope, GraphDef) else scope.node_def
    if any(
        node_name(each) == name for n in nodes for each in n.input if each[0] != "^"
    ):
        return
    for node in nodes:
        if f"^{name}" in node.input:
            node.input.remove(f"^{name}")
            if node.name != replacement and f"^{replacement}" not in node.input:
                node.input.append(f"^{replacement}")
    if not isinstance(scope, GraphDef):
        for key, node in dict(scope.control_ret).items():
            scope.control_ret[key] = replacement if node == name else node
    kept = [node for node in nodes if node.name != name]
    copies = [node_def_pb2.NodeDef.FromString(n.SerializeToString()) for n in kept]
    del nodes[:]
    nodes.extend(copies)


def _merge(
    node: node_def_pb2.NodeDef,
    scan_node: node_def_pb2.NodeDef,
    functions: Mapping[str, function_pb2.FunctionDef],
    number: int,
) -> function_pb2.FunctionDef:
    """Lets a reduction do the steps of a scan before its own; returns its function.

    The scan's state follows the reduction's, whose results thus keep their places.
    """
    reduction, scan = _Fold.of(node), _Fold.of(scan_node)
    name = f"merged{number}_{node.name.replace('/', '_')}"
    function = _composed(name, scan, reduction, functions)
    # What had to precede the scan has to precede the merged reduction.
    waits = itertools.chain(node.input, scan_node.input)
    control = dict.fromkeys(tensor for tensor in waits if tensor.startswith("^"))
    control.pop(f"^{scan_node.name}", None)
    node.input[:] = [
        scan.dataset,
        *[*reduction.initial, *scan.initial],
        *[*reduction.captured, *scan.captured],
        *control,
    ]
    node.attr["f"].func.name = name
    states = [*reduction.states, *scan.states]
    for attribute, types in (
        ("Tstate", states),
        ("output_types", states),
        ("Targuments", [*reduction.others, *scan.others]),
    ):
        node.attr[attribute].list.Clear()
        _set_types(node, attribute, types)
    step = functions[scan.function]
    node.attr["output_shapes"].list.shape.extend(
        argument_shape(step, index) for index in range(len(scan.states))
    )
    return function


def reduce_by_loops(graph_def: GraphDef) -> None:
    """Replaces every ReduceDataset by a While loop over an iterator.

    ReduceDataset instantiates its function on every call, and always on the CPU, which
    costs more than a step of a small model. A loop is part of the graph, is optimized
    with it, and runs on its device.
    """
    loops = _LoopLibrary(
        functions_by_name(graph_def), ordered=_has_data_of_variables(graph_def)
    )
    loops.replace_in(graph_def.node)
    for function in graph_def.library.function:
        replaced = loops.replace_in(function.node_def)
        rename_outputs(function, {name: {"components": 0} for name in replaced})
    graph_def.library.function.extend(loops.functions)


def _has_data_of_variables(graph_def: GraphDef) -> bool:
    """Returns whether an element of a dataset may depend on a variable or a table."""
    inner = (function.node_def for function in graph_def.library.function)
    return any(
        tf.resource.as_datatype_enum in attribute.list.type
        for node in itertools.chain(graph_def.node, *inner)
        if "Dataset" in node.op and node.op != "ReduceDataset"
        for attribute in node.attr.values()
    )


class _LoopLibrary:
    """Creates the functions of the loops that replace ReduceDataset ops.

    Args:
      signatures: The graph's functions by name.
      ordered: Whether an element must not be fetched before the effects of the step
        before it.
    """

    def __init__(
        self, signatures: Mapping[str, function_pb2.FunctionDef], ordered: bool
    ):
        self._signatures = dict(signatures)
        self._ordered = ordered
        self.functions: list[function_pb2.FunctionDef] = []

    def replace_in(self, nodes: Nodes) -> set[str]:
        """Replaces all reductions of a graph; returns the nodes' names."""
        reductions = [node for node in nodes if node.op == "ReduceDataset"]
        for node in reductions:
            self._replace(node)
        return {node.name for node in reductions}

    def _replace(self, node: node_def_pb2.NodeDef) -> None:
        """Turns a ReduceDataset node into a call of a loop with the same results."""
        fold = _Fold.of(node)
        name = f"reduce{len(self.functions)}_{fold.function}"
        self._add_loop(name, fold)
        node.op = "StatefulPartitionedCall"
        node.attr.clear()
        node.attr["f"].func.name = name
        inputs = [tf.variant.as_datatype_enum, *fold.states, *fold.others]
        _set_types(node, "Tin", inputs)
        _set_types(node, "Tout", fold.states)

    def _add_loop(self, name: str, fold: "_Fold") -> None:
        step, states, others = fold.function, fold.states, fold.others
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
            _body(
                f"{name}_body",
                step,
                stateful,
                loop,
                len(states),
                data,
                self._ordered,
            )
        )
        self.functions.append(
            _loop(name, loop, states, others, fold.state_shapes, data)
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
    scan: _Fold,
    reduction: _Fold,
    functions: Mapping[str, function_pb2.FunctionDef],
) -> function_pb2.FunctionDef:
    """Returns a step of a scan followed by a step of the reduction of its output."""
    first, second = functions[scan.function], functions[reduction.function]
    count = len(first.signature.input_arg) - len(scan.states) - len(scan.others)
    elements = [arg.type for arg in first.signature.input_arg[len(scan.states) :]]
    kinds = [reduction.states, scan.states, elements[:count]]
    kinds += [reduction.others, scan.others]
    types = list(itertools.chain(*kinds))
    function = _function(name, types, [*reduction.states, *scan.states])
    names = iter([f"in{index}" for index in range(len(types))])
    state, scan_state, element, others, scan_others = (
        list(itertools.islice(names, len(kind))) for kind in kinds
    )
    _call(function, "scan", first, [*scan_state, *element, *scan_others])
    given = range(len(scan.states), len(first.signature.output_arg))
    outputs = [f"scan:output:{index}" for index in given]
    call = _call(function, "reduce", second, [*state, *outputs, *others])
    call.input.append("^scan")
    _must_run(function, "scan")
    _must_run(function, "reduce")
    results = [f"reduce:output:{index}" for index in range(len(state))]
    results += [f"scan:output:{index}" for index in range(len(scan_state))]
    for index, result in enumerate(results):
        function.ret[f"out{index}"] = result
    for index in range(count):
        shape = argument_shape(first, len(scan.states) + index)
        position = len(state) + len(scan_state) + index
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


def _body(
    name, step, stateful, types, num_states, data, ordered
) -> function_pb2.FunctionDef:
    """Returns the loop body; it fetches the next element during the current step.

    If elements may depend on the step's effects, it fetches the element afterwards.
    """
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
    if ordered and stateful:
        following.input.append("^step")
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


def _loop(name, types, states, others, shapes, data) -> function_pb2.FunctionDef:
    """Returns the loop, whose results are its last state."""
    inputs = [tf.variant.as_datatype_enum, *states, *others]
    function = _function(name, inputs, states)
    iterator = function.node_def.add(name="iterator", op="AnonymousIteratorV3")
    _set_data(iterator, data)
    plain = function.node_def.add(name="plain", op="OptionsDataset", input=["in0"])
    plain.attr["serialized_options"].s = data_options.serialized()
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
    for index in range(len(states)):
        function.ret[f"out{index}"] = f"loop:output:{3 + index}"
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
