"""Moves work out of the loops of a graph.

On a CPU, products with a transposed matrix are up to eight times slower than plain
ones, and a sum of outer products reads and writes a whole matrix in every iteration.
Both are what automatic differentiation makes of a recurrent layer such as Keras' LSTM:
its backward loop multiplies by the transposed weights and sums up their gradients.
`hoist_transposes` transposes such a matrix once, before the loop; `multiply_after_loops`
collects the factors of the products and multiplies them once, after the loop. Products that
the recurrence itself does not need, with the elements of a list and for those of another,
are also taken out of the loop (`list_products`). What is left are products of few rows with
matrices larger than a cache; `divide_products` divides these.
"""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from tff_algos import cpus
from tff_algos.execution import graph_loops
from tff_algos.execution.graph_contents import GraphDef

_MIN_BLOCK_COLUMNS = 64
_TRANSPOSED = {"MatMul": ("transpose_a", "transpose_b")}


def hoist_transposes(graph_def: GraphDef) -> None:
    """Transposes matrices that a loop does not change before it."""
    graph_loops.rewrite_loops(graph_def, _hoist)


def divide_products(graph_def: GraphDef) -> None:
    """Divides large matrices that a loop does not change into blocks of columns.

    Only for CPUs: the kernels repack the whole matrix for every product and wake another
    thread for part of it, which for a batch of few rows takes longer than the arithmetic.
    Products with blocks that fit into a cache take a third to a half less time in all.
    """
    graph_loops.rewrite_loops(graph_def, _divide)


def multiply_after_loops(graph_def: GraphDef) -> None:
    """Replaces sums of products over the iterations of a loop by one product.

    Only sums of `transpose(a) @ b` whose `a` the loop takes from a list, as it does in a
    gradient: the loop then keeps a value per iteration anyway.
    """
    graph_loops.rewrite_loops(graph_def, _collect_factors)


def _hoist(loop: graph_loops.Loop) -> None:
    transposed: dict[str, str] = {}
    for node in loop.body.node_def:
        for position, flag in enumerate(_TRANSPOSED.get(node.op, ())):
            if not node.attr[flag].b:
                continue
            matrix = loop.constant_source(node.input[position])
            if matrix is None:
                continue
            if matrix.tensor not in transposed:
                order = np.array([1, 0], np.int32)
                name = f"{node.name}/transposed_{position}"
                transposed[matrix.tensor] = _transposed(loop, matrix, order, node, name)
            node.input[position] = transposed[matrix.tensor]
            node.attr[flag].b = False
        if node.op == "Transpose":
            _hoist_transpose(loop, node)


def _hoist_transpose(loop: graph_loops.Loop, node: node_def_pb2.NodeDef) -> None:
    """Replaces an op that transposes a constant tensor."""
    tensor, order = (loop.constant_source(node.input[0]), loop.producer(node.input[1]))
    if tensor is None or order is None or order.op != "Const":
        return
    order = tf.make_ndarray(order.attr["value"].tensor)
    name = f"{node.name}/transposed"
    moved = _transposed(loop, tensor, order, node, name)
    dtype = node.attr["T"].type
    node.op = "Identity"
    node.attr.clear()
    node.attr["T"].type = dtype
    node.input[:] = [moved]
    loop.rename_output(f"{node.name}:y:0", f"{node.name}:output:0")


def _transposed(
    loop: graph_loops.Loop,
    outer: graph_loops.Constant,
    order: np.ndarray,
    node: node_def_pb2.NodeDef,
    name: str,
) -> str:
    """Returns an argument of the body that is an outer tensor, transposed."""
    dtype = node.attr["T"].type
    result = loop.add_outside(
        name,
        "Transpose",
        [outer.tensor, loop.constant(f"{name}/order", order)],
        "y",
        T=dtype,
        Tperm=tf.as_dtype(order.dtype).as_datatype_enum,
    )
    known = outer.shape.rank is not None
    shape = [outer.shape[axis] for axis in order] if known else None
    return loop.add_argument(result, dtype, tf.TensorShape(shape))


def _divide(loop: graph_loops.Loop) -> None:
    blocks: dict[str, list[str]] = {}
    for node in list(loop.body.node_def):
        if node.op != "MatMul" or node.attr["transpose_b"].b:
            continue
        matrix = loop.constant_source(node.input[1])
        if matrix is None or not (count := _num_blocks(matrix.shape)):
            continue
        if matrix.tensor not in blocks:
            blocks[matrix.tensor] = _blocks(loop, matrix, count, node)
        _multiply_by_blocks(loop, node, blocks[matrix.tensor])


def _num_blocks(shape: tf.TensorShape) -> int:
    """Returns the number of equal blocks of columns; 0 if the matrix stays whole."""
    if not shape.is_fully_defined():
        return 0
    size, columns = shape.num_elements(), shape[1]
    # Half of the level-2 cache, in float32. With 512 KiB (two cores of an AMD EPYC with
    # AVX2, 4 to 20 rows), blocks of twice the size take up to three times as long. With 2
    # MiB (Intel Xeon, Emerald Rapids), blocks of 256 KiB add an eighth to the CPU time of
    # a round with Keras' LSTM (W3 of `benchmarks/runtimes.py`).
    largest = cpus.level_2_cache_bytes() // 8
    if size <= largest:
        return 0
    counts = range(-(-size // largest), columns // _MIN_BLOCK_COLUMNS + 1)
    return next((count for count in counts if columns % count == 0), 0)


def _blocks(
    loop: graph_loops.Loop,
    matrix: graph_loops.Constant,
    count: int,
    node: node_def_pb2.NodeDef,
) -> list[str]:
    """Returns arguments of the body that are a matrix's blocks of columns."""
    name, dtype = f"{node.name}/blocks", node.attr["T"].type
    axis = loop.constant(f"{name}/axis", np.array(1, np.int32))
    first = loop.add_outside(
        name, "Split", [axis, matrix.tensor], "output", T=dtype, num_split=count
    )
    rows, columns = matrix.shape
    shape = tf.TensorShape([rows, columns // count])
    prefix = first.removesuffix("0")
    return [
        loop.add_argument(f"{prefix}{index}", dtype, shape) for index in range(count)
    ]


def _multiply_by_blocks(
    loop: graph_loops.Loop, node: node_def_pb2.NodeDef, blocks: Sequence[str]
) -> None:
    """Replaces a product with a matrix by the products with its blocks."""
    dtype, transposed = node.attr["T"].type, node.attr["transpose_a"].b
    for index, block in enumerate(blocks):
        loop.add_inside(
            f"{node.name}/block{index}",
            "MatMul",
            [node.input[0], block],
            T=dtype,
            transpose_a=transposed,
            transpose_b=False,
        )
    axis = f"{node.name}/axis"
    int32 = tf.int32.as_datatype_enum
    loop.add_inside(axis, "Const", (), dtype=int32, value=np.array(1, np.int32))
    node.op = "ConcatV2"
    node.attr.clear()
    node.attr["T"].type = dtype
    node.attr["Tidx"].type = int32
    node.attr["N"].i = len(blocks)
    products = [f"{node.name}/block{i}:product:0" for i in range(len(blocks))]
    node.input[:] = [*products, f"{axis}:output:0"]
    loop.rename_output(f"{node.name}:product:0", f"{node.name}:output:0")


@attrs.frozen
class _Sum:
    """A result that is the sum of an argument and of a product `transpose(a) @ b`."""

    index: int
    a: str
    b: str
    dtype: int


def _collect_factors(loop: graph_loops.Loop) -> None:
    sums = list(_sums(loop))
    for each in sums:
        rows = [
            loop.collect_rows(f"{side}{each.index}", factor, width, each.dtype)
            for side, factor, width in zip(
                "ab", (each.a, each.b), loop.shape(each.index), strict=True
            )
        ]
        product = loop.add_outside(
            f"product{each.index}",
            "MatMul",
            rows,
            "product",
            T=each.dtype,
            transpose_a=True,
            transpose_b=False,
        )
        _add_after(loop, each.index, product, each.dtype)
    if sums:
        # In the gradient of a layer that keeps its steps' values anyway.
        _sum_columns_after(loop)


def _add_after(loop: graph_loops.Loop, index: int, tensor: str, dtype: int) -> None:
    """Adds a tensor after the loop to a result that the loop leaves as it is."""
    name = f"sum{index}"
    if not loop.starts_at_zero(index):
        tensor = loop.add_outside(
            name, "AddV2", [loop.output(index), tensor], "z", T=dtype
        )
    loop.replace_output(index, tensor, but=[name])
    loop.leave_unchanged(index)


def _sum_columns_after(loop: graph_loops.Loop) -> None:
    """Sums a bias's gradient over all steps at once, after the loop."""
    for index, _, term in list(_running_sums(loop)):
        width = loop.shape(index)
        if _is_bias_gradient(term) and width.is_fully_defined():
            dtype = term.attr["T"].type
            rows = loop.collected_rows(term.input[0])
            if rows is None:
                matrix = _as_rows(loop, term, width[0])
                rows = loop.collect_rows(f"rows{index}", matrix, width[0], dtype)
            columns = loop.add_outside(
                f"columns{index}", "BiasAddGrad", [rows], "output", T=dtype
            )
            _add_after(loop, index, columns, dtype)


def _is_bias_gradient(node: node_def_pb2.NodeDef) -> bool:
    """Returns whether a node sums over all axes but the last."""
    return node.op == "BiasAddGrad" and node.attr["data_format"].s != b"NCHW"


def _as_rows(loop: graph_loops.Loop, term: node_def_pb2.NodeDef, width: int) -> str:
    """Returns a node's input, which may be a stack of images, as a matrix."""
    name, int32 = f"{term.name}/rows", tf.int32.as_datatype_enum
    value = np.array([-1, width], np.int32)
    loop.add_inside(f"{name}/shape", "Const", (), dtype=int32, value=value)
    loop.add_inside(
        name,
        "Reshape",
        [term.input[0], f"{name}/shape:output:0"],
        T=term.attr["T"].type,
        Tshape=int32,
    )
    return f"{name}:output:0"


def _sums(loop: graph_loops.Loop) -> Iterator[_Sum]:
    for index, _, product in _running_sums(loop):
        if _is_of_saved(loop, product, index):
            a, b = product.input[:2]
            yield _Sum(index, a, b, product.attr["T"].type)


def _running_sums(
    loop: graph_loops.Loop,
) -> Iterator[tuple[int, node_def_pb2.NodeDef, node_def_pb2.NodeDef]]:
    """Yields arguments to which iterations add, with the sums and what is added."""
    for index, name in enumerate(loop.names):
        total = loop.producer(loop.source(loop.result(index)))
        if total is None or total.op not in ("AddN", "Add", "AddV2"):
            continue
        terms = [tensor for tensor in total.input if not tensor.startswith("^")]
        others = [tensor for tensor in terms if loop.source(tensor) != name]
        if (
            len(terms) != 2
            or len(others) != 1
            or not _is_only_added_to(loop, index, total)
        ):
            continue
        term = loop.producer(others[0])
        if term is not None:
            yield index, total, term


def _is_only_added_to(
    loop: graph_loops.Loop, index: int, total: node_def_pb2.NodeDef
) -> bool:
    """Returns whether a sum so far is only used to compute the next one."""
    sums = [f"{total.name}:{output}:0" for output in ("sum", "z")]
    return sum(map(loop.num_uses, sums)) == 1 == loop.num_uses(loop.names[index])


def _is_of_saved(
    loop: graph_loops.Loop, product: node_def_pb2.NodeDef, index: int
) -> bool:
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
