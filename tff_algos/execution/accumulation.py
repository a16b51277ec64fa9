"""Adds up what clients give in a pass, and stacks what is only collected.

An aggregate that appends each client's value to rows, as
`tff_algos.aggregators.GatherFactory` does, would copy all rows for every client.
Here they are written into memory that is allocated once.
"""

import threading
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import tensorflow as tf

from tff_algos.execution import graph_rewrites
from tff_algos.execution.dataflow import Aggregate
from tff_algos.execution.lazy import Lazy
from tff_algos.execution.row_memory import RowMemory

Tensors = Sequence[tf.Tensor]


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


class _Rows:
    """One row for each client, written in any order, by several threads at once.

    On the CPU the memory is not TensorFlow's: its allocator, after it has put small
    tensors there, does not have it in one piece when the next round asks for it again.
    """

    def __init__(self, before: tf.Tensor, num_clients: int, memory: RowMemory):
        self._before = before
        self._num_clients = num_clients
        self._memory = memory
        self._lock = threading.Lock()
        self._rows: tf.Tensor | None = None
        self._array: np.ndarray | None = None

    def _allocate(self, value: tf.Tensor, row_shape: Sequence[int]) -> None:
        with self._lock:
            if self._rows is not None:
                return
            shape = [self._num_clients, *row_shape]
            dtype = np.dtype(value.dtype.as_numpy_dtype)
            if _is_on_cpu(value) and dtype.kind in "fiu":
                self._array = self._memory.take(shape, dtype)
                capsule = self._array.__dlpack__()
                self._rows = tf.experimental.dlpack.from_dlpack(capsule)
            else:
                # Not tf.zeros, which may share a constant's memory.
                self._rows = tf.raw_ops.Empty(shape=shape, dtype=value.dtype)

    def write(self, position: int, value: tf.Tensor, stacked: bool) -> None:
        """Writes the value of the client at `position`, or those of clients from there."""
        self._allocate(value, value.shape[1:] if stacked else value.shape)
        if self._array is None:
            rows = value if stacked else tf.expand_dims(value, 0)
            places = tf.range(position, position + rows.shape[0])
            # A variable's rows could be assigned to as well, but reading it would copy.
            tf.raw_ops.InplaceUpdate(x=self._rows, i=places, v=rows)
            return
        # A tensor's own .numpy() makes a copy first.
        values = memoryview(value) if _is_on_cpu(value) else value.numpy()
        place = slice(position, position + value.shape[0]) if stacked else position
        np.copyto(self._array[place, ...], values)

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
        memory: RowMemory,
        build_fold: Callable[[Sequence[Aggregate]], Callable[..., Tensors]],
    ):
        """Traces nothing yet.

        Args:
          aggregates: Of one client pass.
          device: Where accumulators are.
          memory: For rows on the CPU.
          build_fold: From aggregates to the function of their accumulators' tensors,
            then their values' tensors, that gives the new accumulators' tensors.
        """
        self.device = device
        self.memory = memory
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
                memory = accumulation.memory
                self._rows += [_Rows(zero, num_clients, memory) for zero in own]
            else:
                self._folded += own

    def _by_slot(self, tensors: Tensors, size: str):
        remaining = iter(tensors)
        for slot in self._accumulation.slots:
            yield slot, [next(remaining) for _ in range(getattr(slot, size))]

    def collect(self, values: Tensors, position: int, stacked: bool) -> Tensors:
        """Writes what is only collected into its rows; returns the rest, for `add`.

        Several threads may call it at once, each for other clients.

        Args:
          values: A tensor for each tensor of the aggregates' values.
          position: Of the client in the list of clients, or of the first of several.
          stacked: Whether collected values are of several clients, one row each; if
            not, they are of one client.
        """
        rest, rows = [], iter(self._rows)
        with tf.device(self._accumulation.device):
            for slot, own in self._by_slot(values, "num_values"):
                if not slot.is_rows:
                    rest += own
                    continue
                for value in own:
                    next(rows).write(position, value, stacked)
        return rest

    def add(self, values: Tensors) -> None:
        """Adds the next values that `collect` left, in the order of the clients."""
        if self._folded:
            fold = self._accumulation.fold()
            with tf.device(self._accumulation.device):
                self._folded = list(fold(*self._folded, *values))

    def result(self) -> list[tf.Tensor]:
        """Returns a tensor for each tensor of the accumulators; to be called once."""
        folded, rows = iter(self._folded), iter(self._rows)
        results = []
        with tf.device(self._accumulation.device):
            for slot in self._accumulation.slots:
                for _ in range(slot.num_zeros):
                    results.append(next(rows).read() if slot.is_rows else next(folded))
        return results
