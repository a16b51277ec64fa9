"""Moves work out of the loops of a graph.

On a CPU, products with a transposed matrix are up to eight times slower than plain
ones, and a sum of outer products reads and writes a whole matrix in every iteration.
Both are what automatic differentiation makes of a recurrent layer such as Keras' LSTM:
its backward loop multiplies by the transposed weights and sums up their gradients.
`hoist_transposes` transposes such a matrix once, before the loop; `multiply_after_loops`
collects the factors of the products and multiplies them once, after the loop.

Loops are changed as protos, because most are inside functions, which graph-building
APIs cannot change.
"""

from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import function_pb2, node_def_pb2

from tff_algos.execution import graph_rewrites
from tff_algos.execution.graph_rewrites import GraphDef

_LOOPS = ("While", "StatelessWhile")
_TRANSPOSED = {"MatMul": ("transpose_a", "transpose_b")}


def hoist_transposes(graph_def: GraphDef) -> None:
    """Transposes matrices that a loop does not change before it."""
    _rewrite_loops(graph_def, _hoist)


def multiply_after_loops(graph_def: GraphDef) -> None:
    """Replaces sums of products over the iterations of a loop by one product.

    Only sums of `transpose(a) @ b` whose `a` the loop takes from a list, as it does in a
    gradient: the loop then keeps a value per iteration anyway.
    """
    _rewrite_loops(graph_def, _collect_factors)


def _rewrite_loops(graph_def: GraphDef, rewrite: Callable[["_Loop"], None]) -> None:
    functions = {each.signature.name: each for each in graph_def.library.function}
    # Inner loops first: changing a loop copies its body.
    inner_first = graph_rewrites.callees_first(graph_def.library)
    for scope in [*[functions[name] for name in inner_first], graph_def]:
        for node in list(_nodes(scope)):
            if node.op in _LOOPS:
                loop = _Loop(scope, node, functions)
                rewrite(loop)
                for changed in loop.changed_functions():
                    added = graph_def.library.function.add()
                    added.CopyFrom(changed)
                    functions[added.signature.name] = added


def _nodes(scope: GraphDef | function_pb2.FunctionDef):
    return scope.node if isinstance(scope, GraphDef) else scope.node_def


class _Loop:
    """A loop whose body gets more arguments and other results."""

    def __init__(
        self,
        scope: GraphDef | function_pb2.FunctionDef,
        node: node_def_pb2.NodeDef,
        functions: dict[str, function_pb2.FunctionDef],
    ):
        """Initializes without changing anything.

        Args:
          scope: The graph or function with the loop.
          node: The loop's node.
          functions: All functions by name.
        """
        self._scope = scope
        self._functions = functions
        self.node = node
        # Copies, because another loop may have the same functions.
        self.body = function_pb2.FunctionDef()
        self.body.CopyFrom(functions[node.attr["body"].func.name])
        self._condition = function_pb2.FunctionDef()
        self._condition.CopyFrom(functions[node.attr["cond"].func.name])
        self.names = [each.name for each in self.body.signature.input_arg]
        self._nodes = {each.name: each for each in self.body.node_def}
        self._changed = False

    def changed_functions(self) -> list[function_pb2.FunctionDef]:
        """Puts the changed functions into the loop and returns them."""
        if not self._changed:
            return []
        for attribute, function in (("body", self.body), ("cond", self._condition)):
            name = f"{function.signature.name}_{self.node.name.replace('/', '_')}"
            function.signature.name = f"{name}_{len(self.names)}"
            self.node.attr[attribute].func.name = function.signature.name
        return [self.body, self._condition]

    def source(self, tensor: str) -> str:
        """Returns the argument or the tensor that a tensor of the body is equal to."""
        while (node := self.producer(tensor)) is not None and node.op == "Identity":
            tensor = node.input[0]
        return tensor

    def producer(self, tensor: str) -> node_def_pb2.NodeDef | None:
        """Returns the node of the body with a tensor; `None` for an argument."""
        return self._nodes.get(graph_rewrites.node_name(tensor))

    def result(self, index: int) -> str:
        """Returns the tensor of the body that is a result."""
        return self.body.ret[self.body.signature.output_arg[index].name]

    def invariant(self, tensor: str) -> int | None:
        """Returns the position of an argument that no iteration changes."""
        name = self.source(tensor)
        if name not in self.names:
            return None
        index = self.names.index(name)
        return index if self.source(self.result(index)) == name else None

    def constant_source(self, tensor: str) -> str | None:
        """Returns a tensor before the loop that a tensor of the body is always equal to.

        In a gradient, this may be a value that the loop of the forward pass saved in
        each iteration though none changed it.
        """
        index = self.invariant(tensor)
        if index is not None:
            return self.node.input[index]
        pop = self.producer(self.source(tensor))
        if pop is None or pop.op != "TensorListPopBack":
            return None
        name = self.source(pop.input[0])
        if name not in self.names:
            return None
        return self._always_saved(self.node.input[self.names.index(name)])

    def _always_saved(self, values: str) -> str | None:
        """Returns the tensor of which a list has one copy per iteration of a loop."""
        producer = self._outside(values)
        if producer is None or producer.op not in _LOOPS:
            return None
        forward = _Loop(self._scope, producer, self._functions)
        index = int(values.rpartition(":")[2]) if ":" in values else 0
        empty = self._outside(producer.input[index])
        push = forward.producer(forward.source(forward.result(index)))
        if (
            empty is None
            or empty.op != "EmptyTensorList"
            or push is None
            or push.op != "TensorListPushBack"
            or forward.source(push.input[0]) != forward.names[index]
        ):
            return None
        saved = forward.invariant(push.input[1])
        return None if saved is None else producer.input[saved]

    def _outside(self, tensor: str) -> node_def_pb2.NodeDef | None:
        """Returns the node of the scope with a tensor; `None` for an argument."""
        nodes = {each.name: each for each in _nodes(self._scope)}
        node = nodes.get(graph_rewrites.node_name(tensor))
        while node is not None and node.op == "Identity":
            node = nodes.get(graph_rewrites.node_name(node.input[0]))
        return node

    def num_uses(self, tensor: str) -> int:
        """Returns how often nodes or results of the body use a tensor."""
        used = [name for node in self.body.node_def for name in node.input]
        return [*used, *self.body.ret.values()].count(tensor)

    def shape(self, index: int) -> tf.TensorShape:
        """Returns the static shape of an argument, as far as it is known."""
        shapes = self.node.attr["output_shapes"].list.shape
        if shapes:
            return tf.TensorShape(shapes[index])
        return tf.TensorShape(graph_rewrites.argument_shape(self.body, index))

    def add_argument(self, tensor: str, dtype: int) -> str:
        """Adds an argument that stays as it is; returns its name in the body.

        Args:
          tensor: Its value before the loop.
          dtype: Its type.
        """
        name = f"moved{len(self.names)}"
        self.node.input.insert(len(self.names), tensor)
        self.node.attr["T"].list.type.append(dtype)
        if self.node.attr["output_shapes"].list.shape:
            unknown = tf.TensorShape(None).as_proto()
            self.node.attr["output_shapes"].list.shape.append(unknown)
        for function in (self.body, self._condition):
            function.signature.input_arg.add(name=name, type=dtype)
        self.body.signature.output_arg.add(name=name, type=dtype)
        self.body.ret[name] = name
        self.names.append(name)
        self._changed = True
        return name

    def leave_unchanged(self, index: int) -> None:
        """Lets the body return an argument as it is."""
        self.body.ret[self.body.signature.output_arg[index].name] = self.names[index]

    def output(self, index: int) -> str:
        """Returns the name of a result of the loop after it."""
        if isinstance(self._scope, GraphDef):
            return f"{self.node.name}:{index}"
        return f"{self.node.name}:output:{index}"

    def add_outside(
        self, name: str, op: str, inputs: Sequence[str], output: str, **attributes
    ) -> str:
        """Adds a node before or after the loop; returns its first output.

        Args:
          name: The end of its name.
          op: The op.
          inputs: The names of its inputs.
          output: The name of the op's first output.
          **attributes: Its attributes: numbers of types, booleans or arrays.
        """
        node = _nodes(self._scope).add(
            name=f"{self.node.name}/{name}", op=op, input=inputs
        )
        in_graph = isinstance(self._scope, GraphDef)
        _set_attributes(node, attributes)
        return f"{node.name}:0" if in_graph else f"{node.name}:{output}:0"

    def add_inside(self, name: str, op: str, inputs: Sequence[str], **attributes):
        """Adds a node to the body."""
        node = self.body.node_def.add(name=name, op=op, input=inputs)
        _set_attributes(node, attributes)
        self._nodes[name] = node

    def rename_output(self, old: str, new: str) -> None:
        """Lets the body's nodes and results use another tensor instead."""
        for node in self.body.node_def:
            node.input[:] = [new if name == old else name for name in node.input]
        for key, name in self.body.ret.items():
            self.body.ret[key] = new if name == old else name

    def constant(self, name: str, value: np.ndarray) -> str:
        """Adds a constant outside of the loop."""
        dtype = tf.as_dtype(value.dtype).as_datatype_enum
        return self.add_outside(name, "Const", (), "output", dtype=dtype, value=value)

    def replace_output(self, index: int, tensor: str, but: str) -> None:
        """Lets the loop's users, except the node `but`, use another tensor instead."""
        old = {self.output(index)}
        if index == 0 and isinstance(self._scope, GraphDef):
            old.add(self.node.name)
        in_graph = isinstance(self._scope, GraphDef)
        for node in _nodes(self._scope):
            if node.name != f"{self.node.name}/{but}":
                for position, name in enumerate(node.input):
                    if name in old:
                        node.input[position] = tensor
        if not in_graph:
            for key, name in self._scope.ret.items():
                if name in old:
                    self._scope.ret[key] = tensor


def _set_attributes(node: node_def_pb2.NodeDef, attributes) -> None:
    for name, value in attributes.items():
        if isinstance(value, bool):
            node.attr[name].b = value
        elif isinstance(value, int):
            node.attr[name].type = value
        else:
            node.attr[name].tensor.CopyFrom(tf.make_tensor_proto(value))


def _hoist(loop: _Loop) -> None:
    transposed: dict[str, str] = {}
    for node in loop.body.node_def:
        for position, flag in enumerate(_TRANSPOSED.get(node.op, ())):
            if not node.attr[flag].b:
                continue
            matrix = loop.constant_source(node.input[position])
            if matrix is None:
                continue
            if matrix not in transposed:
                order = np.array([1, 0], np.int32)
                transposed[matrix] = _transposed(loop, matrix, order, node)
            node.input[position] = transposed[matrix]
            node.attr[flag].b = False
        if node.op == "Transpose":
            _hoist_transpose(loop, node)


def _hoist_transpose(loop: _Loop, node: node_def_pb2.NodeDef) -> None:
    """Replaces an op that transposes a constant tensor."""
    tensor, order = (loop.constant_source(node.input[0]), loop.producer(node.input[1]))
    if tensor is None or order is None or order.op != "Const":
        return
    order = tf.make_ndarray(order.attr["value"].tensor)
    moved = _transposed(loop, tensor, order, node)
    dtype = node.attr["T"].type
    node.op = "Identity"
    node.attr.clear()
    node.attr["T"].type = dtype
    node.input[:] = [moved]
    loop.rename_output(f"{node.name}:y:0", f"{node.name}:output:0")


def _transposed(
    loop: _Loop, tensor: str, order: np.ndarray, node: node_def_pb2.NodeDef
) -> str:
    """Returns an argument of the body that is an outer tensor, transposed."""
    name, dtype = f"{node.name}/transposed", node.attr["T"].type
    result = loop.add_outside(
        name,
        "Transpose",
        [tensor, loop.constant(f"{name}/order", order)],
        "y",
        T=dtype,
        Tperm=tf.as_dtype(order.dtype).as_datatype_enum,
    )
    return loop.add_argument(result, dtype)


@attrs.frozen
class _Sum:
    """A result that is the sum of an argument and of a product `transpose(a) @ b`."""

    index: int
    a: str
    b: str
    dtype: int


def _collect_factors(loop: _Loop) -> None:
    for each in list(_sums(loop)):
        lists = [
            _collected(loop, f"{side}{each.index}", factor, width, each.dtype)
            for side, factor, width in zip(
                "ab", (each.a, each.b), loop.shape(each.index), strict=True
            )
        ]
        product = loop.add_outside(
            f"product{each.index}",
            "MatMul",
            lists,
            "product",
            T=each.dtype,
            transpose_a=True,
            transpose_b=False,
        )
        name = f"sum{each.index}"
        total = loop.add_outside(
            name, "AddV2", [loop.output(each.index), product], "z", T=each.dtype
        )
        loop.replace_output(each.index, total, but=name)
        loop.leave_unchanged(each.index)


def _sums(loop: _Loop) -> Iterator[_Sum]:
    for index, name in enumerate(loop.names):
        total = loop.producer(loop.source(loop.result(index)))
        if total is None or total.op not in ("AddN", "Add", "AddV2"):
            continue
        terms = [tensor for tensor in total.input if not tensor.startswith("^")]
        others = [tensor for tensor in terms if loop.source(tensor) != name]
        if len(terms) != 2 or len(others) != 1 or not _used_once(loop, index, total):
            continue
        product = loop.producer(others[0])
        if product is not None and _is_of_saved(loop, product, index):
            a, b = product.input[:2]
            yield _Sum(index, a, b, product.attr["T"].type)


def _used_once(loop: _Loop, index: int, total: node_def_pb2.NodeDef) -> bool:
    """Returns whether a sum so far is only used to compute the next one."""
    sums = [f"{total.name}:{output}:0" for output in ("sum", "z")]
    return sum(map(loop.num_uses, sums)) == 1 == loop.num_uses(loop.names[index])


def _is_of_saved(loop: _Loop, product: node_def_pb2.NodeDef, index: int) -> bool:
    """Returns whether a node is a product `transpose(a) @ b` with a saved `a`."""
    if product.op != "MatMul" or product.attr["transpose_b"].b:
        return False
    saved = loop.producer(loop.source(product.input[0]))
    return (
        product.attr["transpose_a"].b
        and saved is not None
        and saved.op == "TensorListPopBack"
        and loop.num_uses(f"{product.name}:product:0") == 1
        and loop.shape(index).is_fully_defined()
    )


def _collected(loop: _Loop, name: str, tensor: str, width: int, dtype: int) -> str:
    """Collects a matrix of each iteration; returns their rows in one matrix."""
    variant, int32 = (each.as_datatype_enum for each in (tf.variant, tf.int32))
    shape = loop.constant(f"{name}/shape", np.array([-1, width], np.int32))
    empty = loop.add_outside(
        f"{name}/empty",
        "EmptyTensorList",
        [shape, loop.constant(f"{name}/limit", np.array(-1, np.int32))],
        "handle",
        element_dtype=dtype,
        shape_type=int32,
    )
    argument = loop.add_argument(empty, variant)
    loop.add_inside(
        f"{argument}/push",
        "TensorListPushBack",
        [argument, tensor],
        element_dtype=dtype,
    )
    loop.body.ret[argument] = f"{argument}/push:output_handle:0"
    return loop.add_outside(
        f"{name}/rows",
        "TensorListConcatV2",
        [
            loop.output(len(loop.names) - 1),
            shape,
            loop.constant(f"{name}/lengths", np.zeros([0], np.int64)),
        ],
        "tensor",
        element_dtype=dtype,
        shape_type=int32,
    )
