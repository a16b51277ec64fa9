"""Client passes vectorized over clients.

Clients are grouped into chunks; in a chunk, every tensor of the clients' work has a
leading axis of clients. A step processes the next batches of all clients whose batches
have the same shape, so no padding is needed: clients with more batches continue
without the others, and a smaller last batch is a separate step.
"""

import collections
import functools
import itertools
from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.execution import (
    accumulation,
    chunk_functions,
    client_batches,
    types,
    vectorization,
)
from tff_algos.execution.client_passes import (
    ClientError,
    PassInputs,
    PassResult,
    PassWork,
    Tensors,
    UnitOutputs,
    Workers,
    as_tensor,
    cause,
)
from tff_algos.execution.communication import SentValues
from tff_algos.execution.dataflow import Placement, Port
from tff_algos.execution.kept_values import KeptValues
from tff_algos.execution.lazy import Lazy
from tff_algos.execution.plan import ClientPass
from tff_algos.execution.row_memory import RowMemory
from tff_algos.execution.vectorization import VectorizedWork

# A state, its gradient, its update and a step's intermediate values.
_STATE_COPIES = 4
# Memory of a chunk's batches, if all clients have as many as the first. With twice as
# much, a worker runs the clients that it has read before it reads others.
_MAX_CHUNK_DATA_BYTES = 256 << 20
_MAX_CHUNK_CLIENTS = 1024
_MOST_SHARES = 8


@attrs.frozen
class ChunkLimits:
    """Limits on the size of chunks; they do not depend on the number of devices.

    Attributes:
      num_bytes: Memory for the states of a chunk or for its clients' values.
      least_share: A cohort is split into several chunks of at least this many clients.
    """

    num_bytes: int
    least_share: int


def schedule(
    clients: Sequence[client_batches.ClientBatches],
) -> Iterator[chunk_functions.Step]:
    """Yields the steps of a chunk, with every client's batches in order.

    Args:
      clients: The batches of each client of the chunk.

    Yields:
      Steps of clients whose next batches have the same shapes.
    """
    longest = max((len(client.batches) for client in clients), default=0)
    for turn in range(longest):
        groups = collections.defaultdict(list)
        for position, client in enumerate(clients):
            if turn < len(client.batches):
                groups[client.shapes[turn]].append(position)
        for members in groups.values():
            batches = [clients[position].batches[turn] for position in members]
            with tf.device("/device:CPU:0"):
                stacked = tuple(_stack(parts) for parts in zip(*batches, strict=True))
            everyone = len(members) == len(clients)
            clients_taken = None if everyone else np.asarray(members, np.int32)
            yield chunk_functions.Step(clients_taken, stacked)


def _stack(parts: Sequence[tf.Tensor | np.ndarray]) -> tf.Tensor:
    if all(isinstance(part, np.ndarray) for part in parts):
        return tf.constant(np.stack(parts))
    # A quarter faster than tf.stack, for many small tensors.
    return tf.raw_ops.Pack(values=parts)


def _num_bytes(specs: Sequence[tf.TensorSpec]) -> int:
    return sum(
        spec.dtype.size * (spec.shape.num_elements() or 1)
        for spec in specs
        if spec.dtype != tf.variant
    )


def _data_bytes(data: Sequence[client_batches.ClientBatches]) -> int:
    return sum(batches.num_bytes for batches in data)


class BatchedPass:
    """Runs a client pass in chunks of clients; built once per plan.

    Attributes:
      chunk_size: The number of clients per chunk in the last run.
    """

    chunk_size = 0

    def __init__(
        self,
        client_pass: ClientPass,
        work: VectorizedWork,
        devices: Sequence[str],
        cache: client_batches.BatchCache,
        memory: RowMemory,
    ):
        """Initializes without tracing.

        Args:
          client_pass: The pass to run.
          work: Its fragment, split at its reductions.
          devices: The devices; chunks alternate between them.
          cache: The cache of clients' batches.
          memory: The memory for rows of clients' values.
        """
        self._pass = client_pass
        self._work = work
        self._cache = cache
        self._chunk_functions = [
            Lazy(lambda d=device: chunk_functions.ChunkFunctions(client_pass, work, d))
            for device in devices
        ]
        self._read_data = Lazy(lambda: chunk_functions.build_data(work))
        self._sent = SentValues(
            client_pass.aggregates, lambda each: not vectorization.is_sum(each)
        )
        self._accumulation = accumulation.Accumulation(
            client_pass.aggregates,
            devices[0],
            memory,
            lambda folded: chunk_functions.build_accumulate(folded, devices[0]),
        )

    @functools.cached_property
    def client_bytes(self) -> int:
        """Memory of one client's state or of its inputs and outputs, if that is more.

        Tensors of unknown shape are not counted.
        """
        states = [
            spec
            for reduction in self._work.reductions
            for spec in reduction.state_specs
        ]
        fragment = self._work.fragment
        values = [
            types.tensor_spec(port.type_signature)
            for ports in (fragment.inputs, fragment.outputs)
            for port in ports
            if port.placement is Placement.CLIENTS
        ]
        return max(_num_bytes(states), _num_bytes(values))

    def run(
        self, inputs: PassInputs, workers: Workers, limits: ChunkLimits
    ) -> PassResult:
        """Runs the pass over all clients.

        Args:
          inputs: The inputs, for at least one client.
          workers: Threads that run chunks.
          limits: They determine the chunk size and thus the order of summation, which
            does not depend on the number of threads.

        Returns:
          Its results.

        Raises:
          tf.errors.OpError: If the work of a client fails.
          vectorization.NotVectorizableError: If an op cannot be vectorized.
        """
        # Trace before reading any data: if the work cannot be vectorized, the streaming
        # pass needs unread datasets.
        self._chunk_functions[0]()
        # Read once, because a dataset may reshuffle each iteration.
        first = self._read(inputs, 0)
        chunk_size = self._chunk_size(first, limits, inputs.num_clients)
        self.chunk_size = chunk_size
        starts = range(0, inputs.num_clients, chunk_size)
        running = self._accumulation.start(inputs.zeros, inputs.num_clients)
        kept = KeptValues(len(self._pass.kept), inputs.max_kept_bytes)
        work = PassWork(
            self._pass,
            is_vectorized=True,
            takes_turns=False,
            inputs=inputs,
            units=[range(p, min(p + chunk_size, inputs.num_clients)) for p in starts],
            run=lambda unit: self.run_chunk(
                inputs, unit, unit.start // chunk_size, None if unit.start else first
            ),
        )

        def collect(unit: range, outputs: UnitOutputs) -> tuple[Tensors, Sequence, int]:
            rest = running.collect(outputs.values, unit.start, stacked=True)
            sent = self._sent.num_bytes(outputs.values, len(unit))
            return rest, outputs.kept, sent

        bytes_up = 0
        for values, own, sent in workers.map_units(work, collect):
            for each in own:
                kept.append(each)
            running.add(values)
            bytes_up += sent
        return PassResult(running.result(), kept.columns, bytes_up)

    def run_chunk(
        self,
        inputs: PassInputs,
        positions: range,
        number: int = 0,
        first: Sequence[client_batches.ClientBatches] | None = None,
    ) -> UnitOutputs:
        """Runs one chunk of clients.

        Args:
          inputs: The inputs of all clients.
          positions: The positions of the chunk's clients.
          number: The number of the chunk, which determines its device.
          first: The batches of the chunk's first client if they have been read.

        Raises:
          tf.errors.OpError: If the work of a client fails.
        """
        functions = self._chunk_functions[number % len(self._chunk_functions)]()
        parts = self._run_parts(inputs, positions, first, functions)
        return functools.reduce(self._joined, parts)

    def _run_parts(
        self,
        inputs: PassInputs,
        positions: range,
        first: Sequence[client_batches.ClientBatches] | None,
        functions: chunk_functions.ChunkFunctions,
    ) -> Iterator[UnitOutputs]:
        """Yields outputs once, or more often if later clients have far more data.

        Twice the expected data, because a few more would make a small part of its own.
        """
        start, data, num_bytes = positions.start, [], 0
        for position in positions:
            own = self._read(inputs, position) if first is None else first
            first = None
            data.append(own)
            num_bytes += _data_bytes(own)
            is_full = num_bytes >= 2 * _MAX_CHUNK_DATA_BYTES
            if is_full or position == positions[-1]:
                part = range(start, position + 1)
                yield self._run_part(inputs, part, data, functions)
                start, data, num_bytes = position + 1, [], 0

    def _run_part(
        self,
        inputs: PassInputs,
        positions: range,
        data: Sequence[Sequence[client_batches.ClientBatches]],
        functions: chunk_functions.ChunkFunctions,
    ) -> UnitOutputs:
        outputs = self._run_chunk(inputs, positions, data, functions)
        num_values = len(outputs) - len(self._pass.kept)
        kept = [[] for _ in positions]
        if self._pass.kept:
            kept = list(zip(*map(tf.unstack, outputs[num_values:]), strict=True))
        return UnitOutputs(outputs[:num_values], kept)

    def _joined(self, first: UnitOutputs, second: UnitOutputs) -> UnitOutputs:
        """Returns the outputs of the clients of two parts, in order."""
        pairs = zip(first.values, second.values, strict=True)
        values = []
        for aggregate in self._pass.aggregates:
            is_sum = vectorization.is_sum(aggregate)
            for pair in itertools.islice(pairs, aggregate.num_values):
                values.append(tf.add(*pair) if is_sum else tf.concat(pair, axis=0))
        return UnitOutputs(values, [*first.kept, *second.kept])

    def _chunk_size(
        self,
        first: Sequence[client_batches.ClientBatches],
        limits: ChunkLimits,
        num_clients: int,
    ) -> int:
        """Returns the number of clients per chunk, a function of only the cohort."""
        by_states = limits.num_bytes // max(1, _STATE_COPIES * self.client_bytes)
        by_data = _MAX_CHUNK_DATA_BYTES // max(1, _data_bytes(first))
        # Sums depend on the chunk boundaries, so these must not depend on the number of
        # threads or devices.
        by_cohort = max(-(-num_clients // _MOST_SHARES), limits.least_share)
        most = max(1, min(by_states, by_data, by_cohort, _MAX_CHUNK_CLIENTS))
        # Equal chunks end together: 50 and 50 clients sooner than 64 and 36.
        num_chunks = -(-num_clients // most)
        return -(-num_clients // num_chunks)

    def _run_chunk(
        self,
        inputs: PassInputs,
        positions: range,
        data: Sequence[Sequence[client_batches.ClientBatches]],
        functions: chunk_functions.ChunkFunctions,
    ) -> Tensors:
        tensors = self._stacked_inputs(inputs, positions)
        earlier: list[tf.Tensor] = []
        for reduction, reduce in zip(
            self._work.reductions, functions.reductions, strict=True
        ):
            clients = [batches[reduction.data] for batches in data]
            earlier += reduce(len(positions), [*tensors, *earlier], schedule(clients))
        return functions.finish(len(positions), [*tensors, *earlier])

    def _stacked_inputs(
        self, inputs: PassInputs, positions: range
    ) -> list[tf.Tensor | None]:
        """Returns a tensor for each input of the work, `None` for datasets."""
        tensors = []
        for port in self._work.fragment.inputs:
            if port.placement is Placement.SERVER:
                tensors.append(inputs.server[port])
            elif isinstance(port.type_signature, tff.SequenceType):
                tensors.append(None)
            else:
                column = inputs.clients[port]
                tensors.append(tf.stack([column[p] for p in positions]))
        return tensors

    def _read(
        self, inputs: PassInputs, position: int
    ) -> list[client_batches.ClientBatches]:
        """Returns the batches of each dataset that a client's work reduces.

        Raises:
          ClientError: If reading fails; not `OpError`, after which a pass would read again.
        """
        try:
            return self._read_all(inputs, position)
        except tf.errors.OpError as error:
            raise ClientError(position, inputs.num_clients, cause(error)) from error

    def _read_all(
        self, inputs: PassInputs, position: int
    ) -> list[client_batches.ClientBatches]:
        variants = None
        result = []
        for index, source in enumerate(self._work.data_inputs):
            specs = self._element_specs(index)
            if source is None:
                variants = variants or self._make_data(inputs, position)
                result.append(client_batches.read(variants[index], specs))
            else:
                port = self._work.fragment.inputs[source]
                if port.placement is Placement.SERVER:
                    value = inputs.server[port]
                else:
                    value = inputs.clients[port][position]
                result.append(self._cache.read(value, specs))
                # Cached datasets yield the same elements every time.
                if self._cache.get(value) is None and client_batches.may_be_spent(
                    value
                ):
                    inputs.read_once[port, position] = result[-1]
        return result

    def _rereadable(
        self, inputs: PassInputs, port: Port, position: int
    ) -> tf.Tensor | tf.data.Dataset:
        """Returns a client's input, with the elements of a dataset that may be spent."""
        value = inputs.clients[port][position]
        if not client_batches.may_be_spent(value):
            return value
        variant = tf.data.experimental.to_variant(value)
        specs = tf.nest.flatten(value.element_spec)
        read = client_batches.read(variant, specs)
        inputs.read_once[port, position] = read
        return client_batches.as_dataset(read, value)

    def _element_specs(self, data: int) -> tuple[tf.TensorSpec, ...]:
        reductions = self._work.reductions
        return next(each.element_specs for each in reductions if each.data == data)

    def _make_data(self, inputs: PassInputs, position: int) -> Tensors:
        arguments = [
            inputs.server[port]
            if port.placement is Placement.SERVER
            else as_tensor(self._rereadable(inputs, port, position))
            for port in self._work.fragment.inputs
        ]
        fed = zip(arguments, self._work.data.inputs, strict=True)
        return self._read_data()(*[tensor for tensor, name in fed if name is not None])
