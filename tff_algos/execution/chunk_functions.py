"""The functions that run a chunk of clients, all with a leading axis of clients."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np
import tensorflow as tf

from tff_algos import messages
from tff_algos.execution import tracing, types, vectorization, vectorized_loops
from tff_algos.execution.client_passes import Tensors
from tff_algos.execution.dataflow import Aggregate, Placement
from tff_algos.execution.lazy import Lazy
from tff_algos.execution.leaves import Leaf
from tff_algos.execution.plan import ClientPass
from tff_algos.execution.vectorization import Reduction, VectorizedWork

# Characters of the reason why an op has no vectorized form.
_MAX_REASON = 200


@attrs.frozen(eq=False)
class Step:
    """One step of some clients of a chunk.

    Attributes:
      clients: The clients' positions in the chunk; `None` for all clients.
      batch: The components of the batches, with a leading axis of clients.
    """

    clients: np.ndarray | None
    batch: tuple[tf.Tensor, ...]


def build_data(work: VectorizedWork) -> Callable[..., Tensors]:
    """Returns the function from one client's inputs to the datasets it reduces."""
    return _concrete(work.data, _input_specs(work, batched=False))


def _input_specs(work: VectorizedWork, batched: bool) -> list[tf.TensorSpec]:
    """Returns the specs of the work's inputs, for one client or for a chunk."""
    specs = []
    for port in work.fragment.inputs:
        spec = types.tensor_spec(port.type_signature)
        per_client = port.placement is Placement.CLIENTS
        specs.append(_batched(spec) if batched and per_client else spec)
    return specs


def _batched(spec: tf.TensorSpec) -> tf.TensorSpec:
    """Returns the spec of values of all clients of a chunk."""
    return tf.TensorSpec(tf.TensorShape([None]).concatenate(spec.shape), spec.dtype)


def _concrete(leaf: Leaf, specs: Sequence[tf.TensorSpec]) -> Callable[..., Tensors]:
    """Returns the leaf as a function of the inputs that it uses."""
    present = [
        spec for spec, name in zip(specs, leaf.inputs, strict=True) if name is not None
    ]
    return tracing.trace(lambda *tensors: _fed(leaf, iter(tensors)), present)


def _fed(leaf: Leaf, tensors: Iterator[tf.Tensor]) -> list[tf.Tensor]:
    """Adds the leaf to the graph, with a tensor for each input that it uses."""
    return leaf([None if name is None else next(tensors) for name in leaf.inputs])


class _Vectorized:
    """A leaf as a function of stacked and shared tensors.

    It is called with the number of clients and a tensor for each of the leaf's inputs,
    and returns each output stacked over the clients.
    """

    def __init__(
        self,
        leaf: Leaf,
        specs: Sequence[tf.TensorSpec],
        stacked: Sequence[bool],
        device: str,
        transform: Callable[[list[tf.Tensor]], list[tf.Tensor]] = list,
    ):
        """Traces the function.

        Args:
          leaf: The work of one client.
          specs: The specs of the arguments; stacked ones include the clients' axis.
          stacked: Whether each argument is stacked.
          device: The device to run on.
          transform: Applied to the stacked outputs.
        """
        self._present = [name is not None for name in leaf.inputs]
        which = list(itertools.compress(stacked, self._present))

        def run(num_clients: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
            with tf.device(device):
                return transform(map_clients(leaf, num_clients, tensors, which))

        own = itertools.compress(specs, self._present)
        self._function = tracing.trace(run, [tf.TensorSpec([], tf.int32), *own])

    def __call__(
        self, num_clients: int, tensors: Sequence[tf.Tensor | None]
    ) -> list[tf.Tensor]:
        fed = itertools.compress(tensors, self._present)
        return list(self._function(tf.constant(num_clients, tf.int32), *fed))


def map_clients(
    leaf: Leaf,
    num_clients: tf.Tensor,
    tensors: Sequence[tf.Tensor],
    stacked: Sequence[bool],
) -> list[tf.Tensor]:
    """Vectorizes a leaf over clients, in the current graph.

    Args:
      leaf: The work of one client.
      num_clients: Scalar int32.
      tensors: A tensor for each input that the leaf uses; stacked tensors have a
        leading axis of clients.
      stacked: Whether each tensor is stacked.

    Returns:
      The outputs, all with a leading axis of clients.

    Raises:
      vectorization.NotVectorizableError: If an op cannot be vectorized.
    """
    if not leaf.outputs:
        return []
    own = tuple(itertools.compress(tensors, stacked))

    def one(elements: tuple[tf.Tensor, ...]) -> list[tf.Tensor]:
        _, *slices = elements
        remaining = iter(slices)
        return _fed(
            leaf,
            iter(
                [
                    next(remaining) if each else tensor
                    for tensor, each in zip(tensors, stacked, strict=True)
                ]
            ),
        )

    try:
        with _without_error_logs(), vectorized_loops.converted():
            outputs = tf.vectorized_map(
                one, (tf.range(num_clients), *own), fallback_to_while_loop=False
            )
    # pfor raises whatever its converters happen to for an op without a vectorized form.
    except Exception as error:
        raise vectorization.NotVectorizableError(_first_reason(error)) from error
    _skip_gathers(own)
    return outputs


def _skip_gathers(stacked: Sequence[tf.Tensor]) -> None:
    """Lets the readers of all clients' rows of a tensor read the tensor itself.

    `tf.vectorized_map` gathers the rows, which copies the tensor, unless the number of
    clients is static.
    """
    gathers = [op for tensor in stacked for op in tensor.consumers() if _slices(op)]
    for gather in gathers:
        (rows,) = gather.outputs
        for reader in rows.consumers():
            for index, value in enumerate(reader.inputs):
                if value is rows:
                    reader._update_input(index, gather.inputs[0])


def _slices(op: tf.Operation) -> bool:
    """Returns whether `tf.vectorized_map` made the op to slice its elements."""
    return (
        op.type == "GatherV2"
        and "/pfor/" in op.name
        # The first row if there is only one, for all clients, else each client's.
        and op.inputs[1].op.type == "SelectV2"
        and tf.get_static_value(op.inputs[2]) == 0
        and op.get_attr("batch_dims") == 0
    )


def _first_reason(error: BaseException) -> str:
    """Returns the message of the error that came first.

    pfor reports errors with the Python traceback of the op's creation. Imported ops have
    no traceback, so the report itself fails.
    """
    while error.__context__ is not None:
        error = error.__context__
    first_line, *_ = [*str(error).strip().splitlines(), type(error).__name__]
    return messages.shortened(first_line.rstrip("."), _MAX_REASON)


def _without_error_logs() -> contextlib.AbstractContextManager[None]:
    """Suppresses pfor's long log message about each op that it cannot convert.

    This is not an error here: the clients then run one by one, which is logged on one
    line.
    """
    return messages.not_logged("pfor was converting op", tf.get_logger())


class _ReduceFunctions:
    """The functions of one reduction on one device."""

    def __init__(
        self,
        reduction: Reduction,
        specs: Sequence[tf.TensorSpec],
        stacked: Sequence[bool],
        device: str,
    ):
        self._num_states = len(reduction.state_specs)
        self._shared = reduction.shared
        self._prepare = _Vectorized(reduction.prepare, specs, stacked, device)
        self._share_present = [name is not None for name in reduction.share.inputs]
        self._share = _concrete(reduction.share, specs)
        self._step = step = _build_step(reduction, device)
        self._step_some = Lazy(lambda: _build_step_of_some(reduction, step, device))

    def __call__(
        self,
        num_clients: int,
        tensors: Sequence[tf.Tensor | None],
        steps: Iterator[Step],
    ) -> list[tf.Tensor]:
        """Runs all steps; returns the last state of every client."""
        prepared = self._prepare(num_clients, tensors)
        states, own = prepared[: self._num_states], prepared[self._num_states :]
        common = []
        if any(self._shared):
            common = self._share(*itertools.compress(tensors, self._share_present))
        remaining_own, remaining_common = iter(own), iter(common)
        others = [
            next(remaining_common) if shared else next(remaining_own)
            for shared in self._shared
        ]
        for step in steps:
            if step.clients is None:
                states = self._step(*states, *step.batch, *others)
            else:
                members = tf.constant(step.clients)
                states = self._step_some()(members, *states, *step.batch, *others)
        return list(states)


def _step_arguments(
    reduction: Reduction,
) -> tuple[list[tf.TensorSpec], list[bool], list[bool]]:
    """Returns a step's argument specs, and which are stacked and which are batches."""
    states, parts = reduction.state_specs, reduction.element_specs
    others = [
        spec if shared else _batched(spec)
        for spec, shared in zip(reduction.other_specs, reduction.shared, strict=True)
    ]
    stacked = [True] * len(states + parts) + [not each for each in reduction.shared]
    is_batch = [False] * len(states) + [True] * len(parts) + [False] * len(others)
    return [*map(_batched, states + parts), *others], stacked, is_batch


def _step_clients(
    reduction: Reduction, num_clients: tf.Tensor, tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Applies the step to every client, in the current graph."""
    _, stacked, _ = _step_arguments(reduction)
    present = [name is not None for name in reduction.step.inputs]
    return map_clients(
        reduction.step,
        num_clients,
        list(itertools.compress(tensors, present)),
        list(itertools.compress(stacked, present)),
    )


def _build_step(reduction: Reduction, device: str) -> Callable[..., Tensors]:
    """Returns a step of all clients: a function of states, batch, other arguments."""
    specs, _, is_batch = _step_arguments(reduction)

    def step(*tensors: tf.Tensor) -> list[tf.Tensor]:
        with tf.device(device):
            num_clients = tf.shape(tensors[is_batch.index(True)])[0]
            return _step_clients(reduction, num_clients, tensors)

    return tracing.trace(step, specs)


def _build_step_of_some(
    reduction: Reduction, step_all: Callable[..., Tensors], device: str
) -> Callable[..., Tensors]:
    """Returns a step of some clients, whose positions are the first argument."""
    specs, stacked, is_batch = _step_arguments(reduction)

    def step(members: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
        with tf.device(device):
            chosen = [
                tf.gather(tensor, members) if of_chunk and not batch else tensor
                for tensor, of_chunk, batch in zip(
                    tensors, stacked, is_batch, strict=True
                )
            ]
            states = step_all(*chosen)
            return [
                _with_rows(old, members, new)
                for old, new in zip(tensors[: len(states)], states, strict=True)
            ]

    return tracing.trace(step, [tf.TensorSpec([None], tf.int32), *specs])


def _with_rows(tensor: tf.Tensor, members: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Replaces rows of a tensor; TensorFlow refuses to update those without elements."""
    if tensor.shape[1:].num_elements() == 0:
        return tensor
    return tf.tensor_scatter_nd_update(tensor, members[:, tf.newaxis], rows)


class ChunkFunctions:
    """All functions of a pass on one device."""

    def __init__(
        self,
        client_pass: ClientPass,
        work: VectorizedWork,
        device: str,
    ):
        specs = _input_specs(work, batched=True)
        stacked = [p.placement is Placement.CLIENTS for p in work.fragment.inputs]
        self.reductions: list[_ReduceFunctions] = []
        for reduction in work.reductions:
            self.reductions.append(_ReduceFunctions(reduction, specs, stacked, device))
            specs = [*specs, *map(_batched, reduction.state_specs)]
            stacked = [*stacked, *([True] * len(reduction.state_specs))]

        def summed(outputs: list[tf.Tensor]) -> list[tf.Tensor]:
            return _summed(client_pass.aggregates, outputs)

        self.finish = _Vectorized(work.finish, specs, stacked, device, summed)


def _summed(
    aggregates: Sequence[Aggregate], outputs: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Sums the values of aggregates that are sums over the clients' axis."""
    results, remaining = [], list(outputs)
    for aggregate in aggregates:
        values = remaining[: aggregate.num_values]
        remaining = remaining[aggregate.num_values :]
        if vectorization.is_sum(aggregate):
            values = [tf.reduce_sum(value, axis=0) for value in values]
        results += values
    return results + remaining


def build_accumulate(
    aggregates: Sequence[Aggregate], device: str
) -> Callable[..., Tensors]:
    """Returns the function that adds a chunk's values to the accumulators."""
    totals = [port for aggregate in aggregates for port in aggregate.outputs()]
    specs = [types.tensor_spec(port.type_signature) for port in totals]
    sums = tuple(map(vectorization.is_sum, aggregates))
    for aggregate, is_sum in zip(aggregates, sums, strict=True):
        values = [types.tensor_spec(port.type_signature) for port in aggregate.values]
        specs += values if is_sum else map(_batched, values)

    def accumulate(*tensors: tf.Tensor) -> list[tf.Tensor]:
        old, new = list(tensors[: len(totals)]), list(tensors[len(totals) :])
        results = []
        with tf.device(device):
            for aggregate, is_sum in zip(aggregates, sums, strict=True):
                num_zeros, num_values = len(aggregate.zeros), aggregate.num_values
                add = _add if is_sum else _fold
                results += add(aggregate, old[:num_zeros], new[:num_values])
                old, new = old[num_zeros:], new[num_values:]
        return results

    return tracing.trace(accumulate, specs)


def _add(
    aggregate: Aggregate, old: Sequence[tf.Tensor], new: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    del aggregate
    return [a + b for a, b in zip(old, new, strict=True)]


def _fold(
    aggregate: Aggregate, old: Sequence[tf.Tensor], new: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Accumulates the clients' values one by one."""
    outputs = aggregate.outputs()
    shapes = [types.tensor_spec(port.type_signature).shape for port in outputs]

    def body(index: tf.Tensor, *totals: tf.Tensor) -> list[tf.Tensor]:
        values = [tensor[index] for tensor in new]
        added = aggregate.accumulate.with_loops([*totals, *values])
        return [index + 1, *added]

    count = tf.shape(new[0])[0]
    _, *totals = tf.while_loop(
        lambda index, *_: index < count,
        body,
        [tf.constant(0), *old],
        shape_invariants=[tf.TensorShape([]), *shapes],
        parallel_iterations=1,
    )
    return totals
