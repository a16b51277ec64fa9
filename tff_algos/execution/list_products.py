"""Products of a loop with the elements of lists, as one product outside of the loop.

A recurrent layer multiplies the input of every time step by a matrix, and its gradient
those of every step by the transposed matrix. Neither product needs the step before. A
product of all steps' rows reads the matrix once instead of once per step, and the loop has
fewer ops, of which each takes a few microseconds beside its arithmetic.
"""

from collections.abc import Iterator

import attrs
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from tff_algos.execution import graph_loops
from tff_algos.execution.graph_contents import GraphDef

_INT32, _VARIANT = tf.int32.as_datatype_enum, tf.variant.as_datatype_enum


def multiply_elements_before_loops(graph_def: GraphDef) -> None:
    """Multiplies all elements of a list by a matrix before a loop that takes each."""
    graph_loops.rewrite_loops(graph_def, _multiply_before)


def multiply_elements_after_loops(graph_def: GraphDef) -> None:
    """Multiplies what a loop puts into a list by a matrix after it.

    Only for the gradient of a list that was made from one tensor: its elements have one
    shape.
    """
    graph_loops.rewrite_loops(graph_def, _multiply_after)


def _multiply_before(loop: graph_loops.Loop) -> None:
    for node in list(loop.body.node_def):
        matrix = _matrix(loop, node)
        if matrix is None:
            continue
        element = loop.producer(loop.source(node.input[0]))
        if element is None or element.op != "TensorListGetItem":
            continue
        position = loop.invariant(element.input[0])
        if position is None:
            continue
        stacked = loop.outside(loop.node.input[position])
        if stacked is not None and stacked.op == "TensorListFromTensor":
            products = _products_of_all(loop, node, stacked.input[0], matrix)
            _take(loop, node, products, element.input[1], matrix.shape[1])


def _matrix(
    loop: graph_loops.Loop, node: node_def_pb2.NodeDef
) -> graph_loops.Constant | None:
    """Returns the matrix, of static shape, by which a node multiplies rows."""
    if node.op != "MatMul" or any(
        node.attr[flag].b for flag in ("transpose_a", "transpose_b")
    ):
        return None
    matrix = loop.constant_source(node.input[1])
    if matrix is None or not matrix.shape.is_fully_defined():
        return None
    return matrix


def _products_of_all(
    loop: graph_loops.Loop,
    node: node_def_pb2.NodeDef,
    stacked: str,
    matrix: graph_loops.Constant,
) -> str:
    """Returns the list of the products of a stack of matrices."""
    name, dtype = f"{node.name}/all", node.attr["T"].type
    rows, columns = matrix.shape
    flat = loop.add_outside(
        f"{name}/flat",
        "Reshape",
        [stacked, loop.constant(f"{name}/rows", np.array([-1, rows], np.int32))],
        "output",
        T=dtype,
        Tshape=_INT32,
    )
    product = loop.add_outside(
        f"{name}/product",
        "MatMul",
        [flat, matrix.tensor],
        "product",
        T=dtype,
        transpose_a=False,
        transpose_b=False,
    )
    width = np.array([columns], np.int32)
    shape = [_leading(loop, f"{name}/shape", stacked, dtype, 2), width]
    return loop.add_outside(
        f"{name}/list",
        "TensorListFromTensor",
        [
            _reshaped(loop, name, product, dtype, shape),
            loop.constant(f"{name}/element", np.array([-1, columns], np.int32)),
        ],
        "output_handle",
        element_dtype=dtype,
        shape_type=_INT32,
    )


def _leading(
    loop: graph_loops.Loop, name: str, tensor: str, dtype: int, count: int
) -> str:
    """Returns the first dimensions of an outer tensor, int32 [count]."""
    shape = loop.add_outside(
        name, "Shape", [tensor], "output", T=dtype, out_type=_INT32
    )
    bounds = [
        loop.constant(f"{name}/{end}", np.array([value], np.int32))
        for end, value in (("begin", 0), ("size", count))
    ]
    return loop.add_outside(
        f"{name}/leading", "Slice", [shape, *bounds], "output", T=_INT32, Index=_INT32
    )


def _reshaped(
    loop: graph_loops.Loop,
    name: str,
    tensor: str,
    dtype: int,
    shape: list[str | np.ndarray],
) -> str:
    """Returns an outer tensor in the shape of which the parts are given."""
    parts = [
        part if isinstance(part, str) else loop.constant(f"{name}/part{index}", part)
        for index, part in enumerate(shape)
    ]
    axis = loop.constant(f"{name}/axis", np.array(0, np.int32))
    whole = loop.add_outside(
        f"{name}/parts",
        "ConcatV2",
        [*parts, axis],
        "output",
        T=_INT32,
        Tidx=_INT32,
        N=len(parts),
    )
    return loop.add_outside(
        f"{name}/stacked", "Reshape", [tensor, whole], "output", T=dtype, Tshape=_INT32
    )


def _take(
    loop: graph_loops.Loop,
    node: node_def_pb2.NodeDef,
    products: str,
    index: str,
    columns: int,
) -> None:
    """Replaces a product by an element of a list."""
    dtype, shape = node.attr["T"].type, f"{node.name}/element_shape"
    argument = loop.add_argument(products, _VARIANT)
    value = np.array([-1, columns], np.int32)
    loop.add_inside(shape, "Const", (), dtype=_INT32, value=value)
    node.op = "TensorListGetItem"
    node.attr.clear()
    node.attr["element_dtype"].type = dtype
    node.input[:] = [argument, index, f"{shape}:output:0"]
    loop.rename_output(f"{node.name}:product:0", f"{node.name}:item:0")


@attrs.frozen
class _Put:
    """A product that a loop adds to an element of one of its lists.

    Attributes:
      position: Of the list among the loop's arguments.
      index: The index of the element.
      product: The product.
      matrix: Its second factor.
    """

    position: int
    index: str
    product: node_def_pb2.NodeDef
    matrix: graph_loops.Constant


def _multiply_after(loop: graph_loops.Loop) -> None:
    for put in list(_puts(loop)):
        name, dtype = f"{put.product.name}/all", put.product.attr["T"].type
        rows, columns = put.matrix.shape
        factors = loop.collect_rows(f"{name}/rows", put.product.input[0], rows, dtype)
        matrix, is_transposed = _before_transpose(loop, put.matrix.tensor)
        product = loop.add_outside(
            f"{name}/product",
            "MatMul",
            [factors, matrix],
            "product",
            T=dtype,
            transpose_a=False,
            transpose_b=is_transposed,
        )
        indices = loop.collect_scalars(f"{name}/indices", put.index, _INT32)
        shape = _stack_shape(loop, name, product, indices, dtype, columns)
        _add_to_list(
            loop, put, _reshaped(loop, name, product, dtype, shape), indices, dtype
        )


def _before_transpose(loop: graph_loops.Loop, matrix: str) -> tuple[str, bool]:
    """Returns what an outer matrix is the transpose of, and whether it is one.

    One product of many rows is as fast with the transpose, which then need not be made.
    """
    node = loop.outside(matrix)
    order = loop.outside(node.input[1]) if node and node.op == "Transpose" else None
    if order is None or order.op != "Const":
        return matrix, False
    swaps = list(tf.make_ndarray(order.attr["value"].tensor)) == [1, 0]
    return (node.input[0], True) if swaps else (matrix, False)


def _stack_shape(
    loop: graph_loops.Loop,
    name: str,
    product: str,
    indices: str,
    dtype: int,
    columns: int,
) -> list[str | np.ndarray]:
    """Returns the parts of the shape [iterations, rows of an element, columns]."""
    count = _leading(loop, f"{name}/count", indices, _INT32, 1)
    rows = _leading(loop, f"{name}/num_rows", product, dtype, 1)
    one = loop.constant(f"{name}/one", np.array([1], np.int32))
    # A loop may have no iterations.
    least = loop.add_outside(f"{name}/least", "Maximum", [count, one], "z", T=_INT32)
    each = loop.add_outside(f"{name}/each", "FloorDiv", [rows, least], "z", T=_INT32)
    return [count, each, np.array([columns], np.int32)]


def _add_to_list(
    loop: graph_loops.Loop, put: _Put, stacked: str, indices: str, dtype: int
) -> None:
    """Adds elements to those of a list that the loop leaves as it is from now on."""
    name, columns = f"{put.product.name}/all", put.matrix.shape[1]
    # The loop returns the list that it got.
    before = loop.output(put.position)
    length = f"{name}/length"
    num_elements = loop.add_outside(length, "TensorListLength", [before], "length")
    elements = loop.add_outside(
        f"{name}/elements",
        "TensorListScatterV2",
        [
            stacked,
            indices,
            loop.constant(f"{name}/element", np.array([-1, columns], np.int32)),
            num_elements,
        ],
        "output_handle",
        element_dtype=dtype,
        shape_type=_INT32,
    )
    total = f"{name}/total"
    added = loop.add_outside(total, "AddN", [before, elements], "sum", T=_VARIANT, N=2)
    loop.replace_output(put.position, added, but=(length, total))
    loop.leave_unchanged(put.position)


def _puts(loop: graph_loops.Loop) -> Iterator[_Put]:
    for position, name in enumerate(loop.names):
        total = loop.producer(loop.source(loop.result(position)))
        if total is None or total.op != "AddN" or len(total.input) != 2:
            continue
        others = [tensor for tensor in total.input if loop.source(tensor) != name]
        item = loop.producer(others[0]) if len(others) == 1 else None
        if item is None or item.op != "TensorListSetItem":
            continue
        uses = [f"{total.name}:sum:0", f"{item.name}:output_handle:0", name]
        product = loop.producer(item.input[2])
        if product is None or not _are_used_once(loop, [*uses, item.input[2]]):
            continue
        matrix = _matrix(loop, product)
        alone = _is_list_of_equals(loop, item.input[0]) and _advances(
            loop, item.input[1]
        )
        if matrix is not None and alone:
            yield _Put(position, item.input[1], product, matrix)


def _are_used_once(loop: graph_loops.Loop, tensors: list[str]) -> bool:
    """Returns whether each of the tensors is used once, but for identities."""
    return all(loop.num_real_uses(tensor) == 1 for tensor in tensors)


def _is_list_of_equals(loop: graph_loops.Loop, values: str) -> bool:
    """Returns whether a new list is like one that was made from one tensor."""
    reserve = loop.producer(values)
    saved = None
    if reserve is not None and reserve.op == "TensorListReserve":
        saved = loop.saved(reserve.input[0])
    if saved is None:
        return False
    forward, pushed = saved
    shape = forward.producer(forward.source(pushed))
    if shape is None or shape.op != "TensorListElementShape":
        return False
    position = forward.invariant(shape.input[0])
    if position is None:
        return False
    stacked = forward.outside(forward.node.input[position])
    return stacked is not None and stacked.op == "TensorListFromTensor"


def _advances(loop: graph_loops.Loop, index: str) -> bool:
    """Returns whether the saved index differs between any two iterations."""
    saved = loop.saved(index)
    if saved is None:
        return False
    forward, pushed = saved
    name = forward.source(pushed)
    if name not in forward.names:
        return False
    result = forward.result(forward.names.index(name))
    step = forward.producer(forward.source(result))
    if step is None or step.op not in ("Add", "AddV2"):
        return False
    others = [tensor for tensor in step.input if forward.source(tensor) != name]
    value = _constant_value(forward, others[0]) if len(others) == 1 else None
    return value is not None and bool(np.all(value != 0))


def _constant_value(loop: graph_loops.Loop, tensor: str) -> np.ndarray | None:
    """Returns the value of a tensor of the body if it is a constant."""
    node = loop.producer(loop.source(tensor))
    position = loop.invariant(tensor)
    if position is not None:
        node = loop.outside(loop.node.input[position])
    if node is None or node.op != "Const":
        return None
    return tf.make_ndarray(node.attr["value"].tensor)
