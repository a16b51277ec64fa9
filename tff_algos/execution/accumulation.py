"""Adds up what clients give in a pass, and stacks what is only collected.

An aggregate that appends each client's value to rows, as
`tff_algos.aggregators.GatherFactory` does, would copy all rows for every client.
Here they are written into memory that is allocated once.
"""

import math
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow as tf

from tff_algos.execution import graph_rewrites
from tff_algos.execution.dataflow import Aggregate
from tff_algos.execution.lazy import Lazy

Tensors = Sequence[tf.Tensor]

# Of memory, in bytes, that TensorFlow's kernels rely on.
_ALIGNMENT = 64


def appends_rows(aggregate: Aggregate) -> bool:
    """Whether an aggregate appends each tensor of the value to its own accumulator."""
    leaf = aggregate.accumulate
    count = len(aggregate.zeros)
    if aggregate.num_values != count or len(leaf.outputs) != count:
        return False
    nodes = {node.name: node for node in leaf.graph_def.node}

    def source(tensor: str) -> tf.compat.v1.NodeDef:
        node = nodes[graph_rewrites.node_name(tensor)]
        while node.op == "Identity":
            node = nodes[graph_rewrites.node_name(node.input[0])]
        return node

    def is_zero(tensor: str) -> bool:
        node = source(tensor)
        return node.op == "Const" and not tf.make_ndarray(node.attr["value"].tensor)

    def is_argument(tensor: str, argument: str | None) -> bool:
        return argument is not None and (
            source(tensor).name == graph_rewrites.node_name(argument)
        )

    def appends(index: int) -> bool:
        total = source(leaf.outputs[index])
        if total.op != "ConcatV2" or len(total.input) != 3:
            return False
        row = source(total.input[1])
        return (
            total.attr["T"].type != tf.string.as_datatype_enum
            and is_zero(total.input[2])
            and is_argument(total.input[0], leaf.inputs[index])
            and row.op == "ExpandDims"
            and is_zero(row.input[1])
            and is_argument(row.input[0], leaf.inputs[count + index])
        )

    return all(map(appends, range(count)))


def _aligned_memory(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


class _Rows:
    """Rows that are written one after the other, without copies of those before.

    On the CPU the memory is NumPy's, which returns it to the system. TensorFlow's own
    allocator keeps it, and after it has put small tensors there it is not in one piece
    when the next round asks for it again.
    """

    def __init__(self, before: tf.Tensor, num_clients: int):
        self._before = before
        self._num_clients = num_clients
        self._rows: tf.Tensor | None = None
        self._memory: np.ndarray | None = None
        self._filled = 0

    def _allocate(self, like: tf.Tensor) -> None:
        shape = [self._num_clients, *like.shape[1:]]
        dtype = np.dtype(like.dtype.as_numpy_dtype)
        if _is_on_cpu(like) and dtype.kind in "fiu":
            self._memory = _aligned_memory(shape, dtype)
            self._rows = tf.experimental.dlpack.from_dlpack(self._memory.__dlpack__())
        else:
            # Not tf.zeros, which may share a constant's memory.
            self._rows = tf.raw_ops.Empty(shape=shape, dtype=like.dtype)

    def append(self, rows: tf.Tensor) -> None:
        if self._rows is None:
            self._allocate(rows)
        start, end = self._filled, self._filled + rows.shape[0]
        self._filled = end
        if self._memory is not None:
            # A tensor's own .numpy() makes a copy first.
            values = memoryview(rows) if _is_on_cpu(rows) else rows.numpy()
            np.copyto(self._memory[start:end], values)
        else:
            # A variable's rows could be assigned to as well, but reading it would copy.
            tf.raw_ops.InplaceUpdate(x=self._rows, i=tf.range(start, end), v=rows)

    def read(self) -> tf.Tensor:
        if self._rows is None:
            return self._before
        if not self._before.shape[0]:
            return self._rows
        return tf.concat([self._before, self._rows], axis=0)


def _is_on_cpu(tensor: tf.Tensor) -> bool:
    return tensor.device.endswith("CPU:0")


@attrs.frozen(eq=False)
class _Slot:
    """Where an aggregate's tensors are among those of its kind."""

    is_rows: bool
    num_values: int
    num_zeros: int


class Accumulation:
    """What a pass does with its aggregates; made once for a plan."""

    def __init__(
        self,
        aggregates: Sequence[Aggregate],
        device: str,
        build_fold: Callable[[Sequence[Aggregate]], Callable[..., Tensors]],
    ):
        """Traces nothing yet.

        Args:
          aggregates: Of one client pass.
          device: Where accumulators are.
          build_fold: From aggregates to the function of their accumulators' tensors,
            then their values' tensors, that gives the new accumulators' tensors.
        """
        self.device = device
        self.slots = [
            _Slot(appends_rows(each), each.num_values, len(each.zeros))
            for each in aggregates
        ]
        folded = [
            each
            for each, slot in zip(aggregates, self.slots, strict=True)
            if not slot.is_rows
        ]
        self.fold = Lazy(lambda: build_fold(folded))

    def start(self, zeros: Tensors, num_clients: int) -> "RunningAccumulation":
        """Returns the accumulation of one run.

        Args:
          zeros: A tensor for each tensor of the aggregates' accumulators.
          num_clients: How many clients give values.
        """
        return RunningAccumulation(self, zeros, num_clients)


class RunningAccumulation:
    """The accumulators of one run."""

    def __init__(self, accumulation: Accumulation, zeros: Tensors, num_clients: int):
        self._accumulation = accumulation
        self._folded: list[tf.Tensor] = []
        self._rows: list[_Rows] = []
        for slot, own in self._by_slot(zeros, "num_zeros"):
            if slot.is_rows:
                self._rows += [_Rows(zero, num_clients) for zero in own]
            else:
                self._folded += own

    def _by_slot(self, tensors: Tensors, size: str):
        remaining = iter(tensors)
        for slot in self._accumulation.slots:
            yield slot, [next(remaining) for _ in range(getattr(slot, size))]

    def add(self, values: Tensors, stacked: bool) -> None:
        """Adds the next values, in the order of the clients.

        Args:
          values: A tensor for each tensor of the aggregates' values.
          stacked: Whether collected values are of several clients, one row each; if
            not, they are of one client.
        """
        new, rows = [], iter(self._rows)
        with tf.device(self._accumulation.device):
            for slot, own in self._by_slot(values, "num_values"):
                if not slot.is_rows:
                    new += own
                    continue
                for value in own:
                    next(rows).append(value if stacked else tf.expand_dims(value, 0))
        if self._folded:
            self._folded = list(self._accumulation.fold()(*self._folded, *new))

    def result(self) -> list[tf.Tensor]:
        """Returns a tensor for each tensor of the accumulators; to be called once."""
        folded, rows = iter(self._folded), iter(self._rows)
        results = []
        with tf.device(self._accumulation.device):
            for slot in self._accumulation.slots:
                for _ in range(slot.num_zeros):
                    results.append(next(rows).read() if slot.is_rows else next(folded))
        return results
