"""Client passes vectorized over clients.

Clients are grouped into chunks; in a chunk, every tensor of the clients' work has a
leading axis of clients. A step processes the next batches of all clients whose batches
have the same shape, so no padding is needed: clients with more batches continue
without the others, and a smaller last batch is a separate step.
"""

import collections
import contextlib
import functools
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.execution import (
    accumulation,
    chunk_functions,
    client_batches,
    client_reader,
    types,
    vectorization,
)
from tff_algos.execution.client_passes import (
    PassInputs,
    PassResult,
    PassWork,
    Tensors,
    UnitOutputs,
    Workers,
)
from tff_algos.execution.communication import SentValues
from tff_algos.execution.dataflow import Placement
from tff_algos.execution.kept_values import KeptValues
from tff_algos.execution.lazy import Lazy
from tff_algos.execution.plan import ClientPass, Fragment
from tff_algos.execution.row_memory import RowMemory
from tff_algos.execution.vectorization import VectorizedWork

_T = TypeVar("_T")

# A state, its gradient, its update and a step's intermediate values.
_STATE_COPIES = 4
# Memory of a chunk's batches, if all clients have as many as the first. With twice as
# much, the clients that were read run first; threads that read ahead may hold others, at
# most two each.
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


def value_bytes(fragment: Fragment) -> int:
    """Returns the memory of what one client gives to and gets from a fragment.

    Datasets are not counted; a tensor of unknown shape counts as one element.
    """
    values = [
        types.tensor_spec(port.type_signature)
        for ports in (fragment.inputs, fragment.outputs)
        for port in ports
        if port.placement is Placement.CLIENTS
    ]
    return _num_bytes(values)


def _data_bytes(data: Sequence[client_batches.ClientBatches]) -> int:
    # Several reductions may share batches.
    return sum({id(batches): batches.num_bytes for batches in data}.values())


def _timed(items: Iterable[_T]) -> Iterator[tuple[_T, float]]:
    """Yields each item with the seconds it took to get it."""
    iterator = iter(items)
    while True:
        start = time.perf_counter()
        try:
            item = next(iterator)
        except StopIteration:
            return
        yield item, time.perf_counter() - start


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
        self._chunk_functions = [
            Lazy(lambda d=device: chunk_functions.ChunkFunctions(client_pass, work, d))
            for device in devices
        ]
        self._reader = client_reader.ClientReader(work, cache)
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

        Datasets are not counted; a tensor of unknown shape counts as one element.
        """
        states = [
            spec
            for reduction in self._work.reductions
            for spec in reduction.state_specs
        ]
        return max(_num_bytes(states), value_bytes(self._work.fragment))

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
        start = time.perf_counter()
        first = self._reader.read(inputs, 0)
        reading_seconds = time.perf_counter() - start
        chunk_size = self._chunk_size(first, limits, inputs.num_clients)
        self.chunk_size = chunk_size
        starts = range(0, inputs.num_clients, chunk_size)
        running = self._accumulation.start(inputs.zeros, inputs.num_clients)
        kept = KeptValues(len(self._pass.kept), inputs.max_kept_bytes)
        work = PassWork(
            self._pass,
            is_vectorized=True,
            takes_turns=self._reader.takes_turns(inputs),
            inputs=inputs,
            units=[range(p, min(p + chunk_size, inputs.num_clients)) for p in starts],
            run=lambda unit: self.run_chunk(
                inputs,
                unit,
                unit.start // chunk_size,
                first=None if unit.start else first,
                workers=workers,
            ),
        )

        def collect(unit: range, outputs: UnitOutputs) -> tuple[UnitOutputs, int]:
            rest = running.collect(outputs.values, unit.start, stacked=True)
            sent = self._sent.num_bytes(outputs.values, len(unit))
            return attrs.evolve(outputs, values=rest), sent

        bytes_up = 0
        for outputs, sent in workers.map_units(work, collect):
            for each in outputs.kept:
                kept.append(each)
            running.add(outputs.values)
            bytes_up += sent
            reading_seconds += outputs.reading_seconds
        return PassResult(running.result(), kept.columns, bytes_up, reading_seconds)

    def run_chunk(
        self,
        inputs: PassInputs,
        positions: range,
        number: int = 0,
        first: Sequence[client_batches.ClientBatches] | None = None,
        workers: Workers | None = None,
    ) -> UnitOutputs:
        """Runs one chunk of clients.

        Args:
          inputs: The inputs of all clients.
          positions: The positions of the chunk's clients.
          number: The number of the chunk, which determines its device.
          first: The batches of the chunk's first client if they have been read.
          workers: Threads that read clients in advance, unless they run this chunk.

        Raises:
          tf.errors.OpError: If the work of a client fails.
        """
        functions = self._chunk_functions[number % len(self._chunk_functions)]()
        unread = positions if first is None else positions[1:]
        reads = self._reader.read_clients(inputs, unread, workers)
        with contextlib.closing(reads):
            data = reads if first is None else itertools.chain([first], reads)
            parts = self._run_parts(inputs, positions, data, functions)
            return functools.reduce(self._joined, parts)

    def _run_parts(
        self,
        inputs: PassInputs,
        positions: range,
        clients: Iterable[Sequence[client_batches.ClientBatches]],
        functions: chunk_functions.ChunkFunctions,
    ) -> Iterator[UnitOutputs]:
        """Yields outputs once, or more often if later clients have far more data.

        Twice the expected data, because a few more would make a small part of its own.
        """
        start, data, num_bytes, waited = positions.start, [], 0, 0.0
        for position, (own, seconds) in zip(positions, _timed(clients), strict=True):
            data.append(own)
            waited += seconds
            num_bytes += _data_bytes(own)
            is_full = num_bytes >= 2 * _MAX_CHUNK_DATA_BYTES
            if is_full or position == positions[-1]:
                part = range(start, position + 1)
                outputs = self._run_part(inputs, part, data, functions)
                yield attrs.evolve(outputs, reading_seconds=waited)
                start, data, num_bytes, waited = position + 1, [], 0, 0.0

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
        waited = first.reading_seconds + second.reading_seconds
        return UnitOutputs(values, [*first.kept, *second.kept], waited)

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
        for number, reduce in enumerate(functions.reductions):
            clients = [batches[number] for batches in data]
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
