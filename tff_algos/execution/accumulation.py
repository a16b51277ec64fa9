"""Accumulates clients' values in a pass: adds sums, stacks collected rows.

An aggregate that appends each client's value to rows, as
`tff_algos.aggregators.GatherFactory` does, would copy all rows for every client.
Here rows are written into memory that is allocated once.
"""

import threading
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import tensorflow as tf

from tff_algos.execution import graph_contents
from tff_algos.execution.dataflow import Aggregate
from tff_algos.execution.lazy import Lazy
from tff_algos.execution.row_memory import RowMemory

Tensors = Sequence[tf.Tensor]

_HOST = "/device:CPU:0"


def appends_rows(aggregate: Aggregate) -> bool:
    """Returns whether an aggregate appends each value tensor to its own accumulator."""
    leaf = aggregate.accumulate
    count = len(aggregate.zeros)
    if aggregate.num_values != count or len(leaf.outputs) != count:
        return False
    nodes = {node.name: node for node in leaf.graph_def.node}

    def source(tensor: str) -> tf.compat.v1.NodeDef:
        node = nodes[graph_contents.node_name(tensor)]
        while node.op == "Identity":
            node = nodes[graph_contents.node_name(node.input[0])]
        return node

    def is_zero(tensor: str) -> bool:
        node = source(tensor)
        return node.op == "Const" and not tf.make_ndarray(node.attr["value"].tensor)

    def is_argument(tensor: str, argument: str | None) -> bool:
        return argument is not None and (
            source(tensor).name == graph_contents.node_name(argument)
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
    """One row per client, written in any order and by several threads concurrently.

    Rows of floats stay on the GPU that computes them; all others are on the CPU. There
    the memory is not TensorFlow's: its allocator would place small tensors in it and
    could not provide it as one block in the next round.
    """

    def __init__(self, before: tf.Tensor, num_clients: int, memory: RowMemory):
        self._before = before
        self._num_clients = num_clients
        self._memory = memory
        self._lock = threading.Lock()
        self._rows: tf.Tensor | None = None
        self._array: np.ndarray | None = None
        self._device = _HOST
        self._error: tf.errors.OpError | None = None

    def _allocate(self, value: tf.Tensor, row_shape: Sequence[int]) -> None:
        with self._lock:
            if self._error is not None:
                # On a GPU, every attempt would take ten seconds.
                raise self._error
            if self._rows is not None:
                return
            shape = [self._num_clients, *row_shape]
            dtype = np.dtype(value.dtype.as_numpy_dtype)
            self._device = _device_of_rows(value)
            if self._device == _HOST and dtype.kind in "fiu":
                self._array = self._memory.take(shape, dtype)
                capsule = self._array.__dlpack__()
                self._rows = tf.experimental.dlpack.from_dlpack(capsule)
            else:
                try:
                    with tf.device(self._device):
                        # Not tf.zeros, which may share a constant's memory.
                        self._rows = tf.raw_ops.Empty(shape=shape, dtype=value.dtype)
                except tf.errors.OpError as error:
                    self._error = error
                    raise

    def write(self, position: int, value: tf.Tensor, stacked: bool) -> None:
        """Writes the value at `position` or, if stacked, the values from there on.

        Raises:
          tf.errors.InvalidArgumentError: If it does not have the shape of a row.
        """
        row_shape = value.shape[1:] if stacked else value.shape
        if row_shape != self._before.shape[1:]:  # NumPy would repeat a single element.
            raise tf.errors.InvalidArgumentError(
                None,
                None,
                f"Expected a row of shape {self._before.shape[1:]}, found {row_shape}.",
            )
        self._allocate(value, row_shape)
        if self._array is None:
            rows = value if stacked else tf.expand_dims(value, 0)
            places = tf.range(position, position + rows.shape[0])
            # Not a variable, because reading it would copy the rows. On another device,
            # TensorFlow would update a copy.
            with tf.device(self._device):
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


def _device_of_rows(value: tf.Tensor) -> str:
    """Returns the device for a value's rows: its GPU if that can update them in place.

    Where a GPU has `InplaceUpdate` but no `Empty`, as for bool, it would update a copy.
    """
    in_place = value.dtype in (tf.float16, tf.float32, tf.float64)
    return value.device if in_place and "GPU" in value.device else _HOST


@attrs.frozen(eq=False)
class _Slot:
    """The positions of an aggregate's tensors among those of its kind."""

    is_rows: bool
    num_values: int
    num_zeros: int


class Accumulation:
    """Accumulates the aggregates of a pass; built once per plan."""

    def __init__(
        self,
        aggregates: Sequence[Aggregate],
        device: str,
        memory: RowMemory,
        build_fold: Callable[[Sequence[Aggregate]], Callable[..., Tensors]],
    ):
        """Initializes without tracing.

        Args:
          aggregates: The aggregates of one client pass.
          device: The device of the accumulators.
          memory: The memory for rows on the CPU.
          build_fold: Maps aggregates to the function from their accumulators' and
            values' tensors to the new accumulators' tensors.
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
          num_clients: The number of clients.
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
        """Writes collected values into their rows; returns the others, for `add`.

        Threads may call it concurrently for different clients.

        Args:
          values: A tensor for each tensor of the aggregates' values.
          position: The index of the client, or of the first of several.
          stacked: Whether collected values are stacked over several clients.
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
        """Adds the values returned by `collect`; called in the order of the clients."""
        if self._folded:
            fold = self._accumulation.fold()
            with tf.device(self._accumulation.device):
                self._folded = list(fold(*self._folded, *values))

    def result(self) -> list[tf.Tensor]:
        """Returns a tensor for each tensor of the accumulators; call it once."""
        folded, rows = iter(self._folded), iter(self._rows)
        results = []
        with tf.device(self._accumulation.device):
            for slot in self._accumulation.slots:
                for _ in range(slot.num_zeros):
                    results.append(next(rows).read() if slot.is_rows else next(folded))
        return results
