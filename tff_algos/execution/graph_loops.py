"""Loops of a graph, and how to change them.

Loops are changed as protos, because most are inside functions, which graph-building
APIs cannot change.
"""

from collections.abc import Callable, Collection, MutableSequence, Sequence

import attrs
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import function_pb2, node_def_pb2

from tff_algos.execution import graph_contents
from tff_algos.execution.graph_contents import GraphDef

# Attributes of ops that are numbers of tensors.
_COUNTS = ("N", "num_split", "num_elements")
Scope = GraphDef | function_pb2.FunctionDef


def rewrite_loops(graph_def: GraphDef, rewrite: Callable[["Loop"], None]) -> None:
    """Applies a rewrite to every loop of a graph, inner loops first."""
    functions = graph_contents.functions_by_name(graph_def)
    # Inner loops first: changing a loop copies its body.
    inner_first = graph_contents.callees_first(graph_def.library)
    for scope in [*[functions[name] for name in inner_first], graph_def]:
        for node in list(nodes(scope)):
            if node.op in graph_contents.LOOPS:
                loop = Loop(scope, node, functions)
                rewrite(loop)
                for changed in loop.changed_functions():
                    added = graph_def.library.function.add()
                    added.CopyFrom(changed)
                    functions[added.signature.name] = added


def nodes(scope: Scope) -> MutableSequence[node_def_pb2.NodeDef]:
    """Returns the nodes of a graph or a function."""
    return scope.node if isinstance(scope, GraphDef) else scope.node_def


@attrs.frozen
class Constant:
    """A tensor before a loop.

    Attributes:
      tensor: Its name.
      shape: Its static shape, as far as it is known.
    """

    tensor: str
    shape: tf.TensorShape


class Loop:
    """A loop whose body gets more arguments and other results."""

    def __init__(
        self,
        scope: Scope,
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
        return self._nodes.get(graph_contents.node_name(tensor))

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

    def constant_source(self, tensor: str) -> "Constant | None":
        """Returns what a tensor of the body is always equal to; `None` if it changes.

        In a gradient, this may be a value that the loop of the forward pass saved in
        each iteration though none changed it.
        """
        index = self.invariant(tensor)
        if index is not None:
            return Constant(self.node.input[index], self.shape(index))
        saved = self.saved(tensor)
        if saved is None:
            return None
        forward, pushed = saved
        index = forward.invariant(pushed)
        if index is None:
            return None
        return Constant(forward.node.input[index], forward.shape(index))

    def saved(self, tensor: str) -> "tuple[Loop, str] | None":
        """Returns the loop that saved a tensor of this loop in its iterations.

        Args:
          tensor: A tensor of the body.

        Returns:
          The loop and the tensor of its body; `None` if the tensor is not the last
          element of a list to which a loop only adds elements.
        """
        pop = self.producer(self.source(tensor))
        if pop is None or pop.op != "TensorListPopBack":
            return None
        name = self.source(pop.input[0])
        if name not in self.names:
            return None
        values = self.node.input[self.names.index(name)]
        producer = self.outside(values)
        if producer is None or producer.op not in graph_contents.LOOPS:
            return None
        forward = Loop(self._scope, producer, self._functions)
        index = int(values.rpartition(":")[2]) if ":" in values else 0
        empty = self.outside(producer.input[index])
        push = forward.producer(forward.source(forward.result(index)))
        if (
            empty is None
            or empty.op != "EmptyTensorList"
            or push is None
            or push.op != "TensorListPushBack"
            or forward.source(push.input[0]) != forward.names[index]
        ):
            return None
        return forward, push.input[1]

    def outside(self, tensor: str) -> node_def_pb2.NodeDef | None:
        """Returns the node of the scope with a tensor; `None` for an argument."""
        named = {each.name: each for each in nodes(self._scope)}
        node = named.get(graph_contents.node_name(tensor))
        while node is not None and node.op == "Identity":
            node = named.get(graph_contents.node_name(node.input[0]))
        return node

    def starts_at_zero(self, index: int) -> bool:
        """Returns whether an argument is known to be zero before the loop."""
        node = self.outside(self.node.input[index])
        if node is None:
            return False
        if node.op == "Fill":
            node = self.outside(node.input[1])
        if node is not None and node.op == "Const":
            return not np.any(tf.make_ndarray(node.attr["value"].tensor))
        return node is not None and node.op == "ZerosLike"

    def num_uses(self, tensor: str) -> int:
        """Returns how often nodes or results of the body use a tensor."""
        used = [name for node in self.body.node_def for name in node.input]
        return [*used, *self.body.ret.values()].count(tensor)

    def num_real_uses(self, tensor: str) -> int:
        """Returns `num_uses`, with the uses of an identity instead of the identity."""
        total = list(self.body.ret.values()).count(tensor)
        for node in self.body.node_def:
            uses = list(node.input).count(tensor)
            if uses and node.op == "Identity":
                total += self.num_real_uses(f"{node.name}:output:0")
            else:
                total += uses
        return total

    def shape(self, index: int) -> tf.TensorShape:
        """Returns the static shape of an argument, as far as it is known."""
        shapes = self.node.attr["output_shapes"].list.shape
        if shapes:
            return tf.TensorShape(shapes[index])
        return tf.TensorShape(graph_contents.argument_shape(self.body, index))

    def add_argument(
        self, tensor: str, dtype: int, shape: tf.TensorShape | None = None
    ) -> str:
        """Adds an argument that stays as it is; returns its name in the body.

        Args:
          tensor: Its value before the loop.
          dtype: Its type.
          shape: Its shape, if known.
        """
        name = f"moved{len(self.names)}"
        self.node.input.insert(len(self.names), tensor)
        self.node.attr["T"].list.type.append(dtype)
        if self.node.attr["output_shapes"].list.shape:
            known = tf.TensorShape(shape).as_proto()
            self.node.attr["output_shapes"].list.shape.append(known)
        for function in (self.body, self._condition):
            function.signature.input_arg.add(name=name, type=dtype)
        self.body.signature.output_arg.add(name=name, type=dtype)
        self.body.ret[name] = name
        self.names.append(name)
        self._changed = True
        return name

    def collect_rows(self, name: str, tensor: str, width: int, dtype: int) -> str:
        """Collects a matrix of each iteration; returns their rows in one matrix.

        Args:
          name: The start of the names of the nodes outside of the loop.
          tensor: The matrix in the body.
          width: The number of its columns.
          dtype: Its type.
        """
        collected = self.collected_rows(tensor)
        if collected is not None:
            return collected
        shape = self.constant(f"{name}/shape", np.array([-1, width], np.int32))
        lengths = self.constant(f"{name}/lengths", np.zeros([0], np.int64))
        return self.add_outside(
            f"{name}/rows",
            "TensorListConcatV2",
            [self._collect(name, tensor, shape, dtype), shape, lengths],
            "tensor",
            element_dtype=dtype,
            shape_type=tf.int32.as_datatype_enum,
        )

    def collected_rows(self, tensor: str) -> str | None:
        """Returns what `collect_rows` made of a tensor; `None` if it has not been."""
        for node in self.body.node_def:
            if node.op == "TensorListPushBack" and node.input[0] in self.names:
                values = self.output(self.names.index(node.input[0]))
                for outer in nodes(self._scope):
                    if (
                        outer.op == "TensorListConcatV2"
                        and outer.input[0] == values
                        and self.source(node.input[1]) == self.source(tensor)
                    ):
                        return self._outer_tensor(outer, "tensor")
        return None

    def collect_scalars(self, name: str, tensor: str, dtype: int) -> str:
        """Collects a scalar of each iteration; returns a vector of them."""
        shape = self.constant(f"{name}/shape", np.zeros([0], np.int32))
        return self.add_outside(
            f"{name}/scalars",
            "TensorListStack",
            [self._collect(name, tensor, shape, dtype), shape],
            "tensor",
            element_dtype=dtype,
            num_elements=-1,
        )

    def _collect(self, name: str, tensor: str, shape: str, dtype: int) -> str:
        """Returns a list, after the loop, of a tensor of each iteration."""
        variant, int32 = (each.as_datatype_enum for each in (tf.variant, tf.int32))
        limit = self.constant(f"{name}/limit", np.array(-1, np.int32))
        empty = self.add_outside(
            f"{name}/empty",
            "EmptyTensorList",
            [shape, limit],
            "handle",
            element_dtype=dtype,
            shape_type=int32,
        )
        argument = self.add_argument(empty, variant)
        self.add_inside(
            f"{argument}/push",
            "TensorListPushBack",
            [argument, tensor],
            element_dtype=dtype,
        )
        self.body.ret[argument] = f"{argument}/push:output_handle:0"
        return self.output(len(self.names) - 1)

    def leave_unchanged(self, index: int) -> None:
        """Lets the body return an argument as it is."""
        self.body.ret[self.body.signature.output_arg[index].name] = self.names[index]
        self._changed = True

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
          **attributes: Its attributes: types or numbers of tensors, booleans or arrays.
        """
        node = nodes(self._scope).add(
            name=f"{self.node.name}/{name}", op=op, input=inputs
        )
        set_attributes(node, attributes)
        return self._outer_tensor(node, output)

    def _outer_tensor(self, node: node_def_pb2.NodeDef, output: str) -> str:
        """Returns the name of the first tensor of a node outside of the loop."""
        in_graph = isinstance(self._scope, GraphDef)
        return f"{node.name}:0" if in_graph else f"{node.name}:{output}:0"

    def add_inside(self, name: str, op: str, inputs: Sequence[str], **attributes):
        """Adds a node to the body."""
        node = self.body.node_def.add(name=name, op=op, input=inputs)
        set_attributes(node, attributes)
        self._nodes[name] = node
        self._changed = True

    def rename_output(self, old: str, new: str) -> None:
        """Lets the body's nodes and results use another tensor instead."""
        for node in self.body.node_def:
            node.input[:] = [new if name == old else name for name in node.input]
        for key, name in dict(self.body.ret).items():
            self.body.ret[key] = new if name == old else name

    def constant(self, name: str, value: np.ndarray) -> str:
        """Adds a constant outside of the loop."""
        dtype = tf.as_dtype(value.dtype).as_datatype_enum
        return self.add_outside(name, "Const", (), "output", dtype=dtype, value=value)

    def replace_output(self, index: int, tensor: str, but: Collection[str]) -> None:
        """Lets the loop's users, except the nodes `but`, use another tensor instead."""
        old = {self.output(index)}
        if index == 0 and isinstance(self._scope, GraphDef):
            old.add(self.node.name)
        in_graph = isinstance(self._scope, GraphDef)
        kept = {f"{self.node.name}/{name}" for name in but}
        for node in nodes(self._scope):
            if node.name not in kept:
                for position, name in enumerate(node.input):
                    if name in old:
                        node.input[position] = tensor
        if not in_graph:
            for key, name in dict(self._scope.ret).items():
                if name in old:
                    self._scope.ret[key] = tensor


def set_attributes(node: node_def_pb2.NodeDef, attributes) -> None:
    for name, value in attributes.items():
        if isinstance(value, bool):
            node.attr[name].b = value
        elif name in _COUNTS:
            node.attr[name].i = value
        elif isinstance(value, int):
            node.attr[name].type = value
        else:
            node.attr[name].tensor.CopyFrom(tf.make_tensor_proto(value))
