"""Decides whether a pass over the clients is streaming or vectorized."""

import functools
import time
from collections.abc import Sequence

import attrs
import tensorflow as tf
from absl import logging

from tff_algos import messages
from tff_algos.execution import (
    batched_passes,
    client_batches,
    graph_contents,
    op_threads,
    plan,
    vectorization,
)
from tff_algos.execution.batched_passes import BatchedPass, ChunkLimits
from tff_algos.execution.client_passes import (
    PassInputs,
    PassResult,
    StreamingPass,
    Workers,
)
from tff_algos.execution.communication import (
    Broadcasts,
    Communication,
    ports_to_clients,
)
from tff_algos.execution.dataflow import Evaluate
from tff_algos.execution.explanation import PassReport
from tff_algos.execution.lazy import Lazy
from tff_algos.execution.plan import ClientPass
from tff_algos.execution.row_memory import RowMemory

# On a CPU, vectorizing over clients saves op overhead, but streaming keeps the weights
# in caches. Measured: vectorizing is faster below about this size of a state.
_MAX_CPU_CLIENT_BYTES = 1 << 18
_CPU = "/device:CPU:0"
# With fewer clients, the streaming loop is faster (6x with Adult's two), and vectorized
# recurrent layers take longer to trace than they save in 50 rounds.
_MIN_CLIENTS, _MIN_RECURRENT_CLIENTS = 4, 16
# On a CPU, larger chunks do not fit into caches, and in smaller ones the cost of ops
# outweighs the gain from a second thread (measured with logistic regression). A GPU runs
# one op at a time, whichever thread starts it.
_CPU_LIMITS = ChunkLimits(num_bytes=16 << 20, least_share=64)
_GPU_LIMITS = ChunkLimits(num_bytes=4 << 30, least_share=512)


@attrs.frozen(eq=False)
class Resources:
    """The resources shared by the computations of a context.

    Attributes:
      devices: The devices; the server is on the first, clients are on all.
      devices_are_chosen: Whether the devices were asked for, and so must run all clients.
      workers: Threads for the clients.
      cache: The cache of clients' batches.
      row_memory: The memory for rows of clients' values.
      batch_clients: Whether to vectorize over clients: whenever possible (`True`),
        never (`False`), or if it is faster (`None`).
      default_num_clients: Number of clients if the arguments do not determine it.
      max_kept_bytes: Memory for clients' values that a pass keeps for later passes.
      clients_on_gpu: Whether clients run on GPUs, of this process or of others.
    """

    devices: Sequence[str]
    workers: Workers
    cache: client_batches.BatchCache
    row_memory: RowMemory
    batch_clients: bool | None
    default_num_clients: int
    max_kept_bytes: int
    devices_are_chosen: bool = True
    clients_on_gpu: bool = attrs.field()

    @clients_on_gpu.default
    def _default_clients_on_gpu(self) -> bool:
        return "GPU" in self.devices[0]


@attrs.frozen(eq=False)
class _Vectorization:
    """The vectorized form of a pass, or the reason why it has none.

    Attributes:
      batched: The vectorized pass; `None` for none.
      obstacle: Why there is none.
      client_bytes: Memory of a client's state or values, if the work was split.
    """

    batched: BatchedPass | None
    obstacle: str = ""
    client_bytes: int | None = None


class PassRunner:
    """Runs a client pass; built once per plan."""

    def __init__(self, client_pass: ClientPass, resources: Resources):
        is_recurrent = _is_recurrent(client_pass)
        if is_recurrent:
            resources = _without_gpus(resources)
        self._pass = client_pass
        self._resources = resources
        self._to_clients = ports_to_clients(client_pass)
        self._streaming = StreamingPass(
            client_pass, resources.devices, resources.row_memory
        )
        self._min_clients = _MIN_RECURRENT_CLIENTS if is_recurrent else _MIN_CLIENTS
        self._failures = 0
        # The lambda must not reference this object, to avoid a reference cycle.
        self._vectorized = Lazy(lambda: _vectorize(client_pass, resources))

    def run(
        self, inputs: PassInputs, broadcasts: Broadcasts
    ) -> tuple[PassResult, PassReport]:
        """Runs the pass over all clients.

        Args:
          inputs: The inputs.
          broadcasts: What earlier passes of the same call sent to the clients.

        Returns:
          The results; streaming and vectorized passes agree up to rounding. And what
          ran how.

        Raises:
          ClientError: If the work of a client fails.
        """
        start = time.perf_counter()
        result, one_by_one, chunk_size = self._run(inputs)
        made = self._vectorized.value_if_made
        client_bytes = None if made is None else made.client_bytes
        to_client = broadcasts.num_bytes(
            {port: inputs.server[port] for port in self._to_clients}
        )
        report = PassReport(
            num_clients=inputs.num_clients,
            num_aggregates=len(self._pass.aggregates),
            leaves=plan.leaf_names(self._pass.fragment),
            devices=self._resources.devices,
            one_by_one=one_by_one,
            client_bytes=self._value_bytes if client_bytes is None else client_bytes,
            chunk_size=chunk_size,
            seconds=time.perf_counter() - start,
            workers=self._resources.workers.describe(),
            advice=self._advice(inputs.num_clients) if one_by_one else "",
            communication=Communication(
                to_client * inputs.num_clients, result.bytes_up
            ),
            reading_seconds=result.reading_seconds,
        )
        return result, report

    @functools.cached_property
    def _value_bytes(self) -> int:
        return batched_passes.value_bytes(self._pass.fragment)

    def _advice(self, num_clients: int) -> str:
        """Says what is often faster if clients that run one by one occupy all CPUs."""
        workers, within_op = self._resources.workers, op_threads.count()
        if self._resources.clients_on_gpu or workers.describe():
            return ""
        clients = workers.num_threads
        if within_op == 1 or not 1 < clients <= num_clients:
            return ""
        return (
            f"{clients} clients at a time, up to {within_op} threads within an op: "
            "intra_op_threads=1 is often faster"
        )

    def _run(self, inputs: PassInputs) -> tuple[PassResult, str, int]:
        """Returns the results, why clients ran one by one, and the chunk size."""
        workers, demanded = self._resources.workers, self._resources.batch_clients
        fewest = 2 if demanded else self._min_clients
        obstacle = f"fewer than {fewest} clients"
        if inputs.num_clients >= fewest:
            batched, obstacle = self._vectorized().batched, self._vectorized().obstacle
            if batched is not None:
                on_gpu = self._resources.clients_on_gpu
                limits = _GPU_LIMITS if on_gpu else _CPU_LIMITS
                try:
                    result = batched.run(inputs, workers, limits)
                    self._failures = 0
                    return result, "", batched.chunk_size
                except vectorization.NotVectorizableError as error:
                    _say(error, demanded)
                    obstacle = str(error)
                    self._give_up_vectorizing(obstacle, batched)
                except tf.errors.OpError as error:
                    obstacle = messages.one_line(error)
                    return self._run_again(inputs, batched, obstacle), obstacle, 0
        return self._streaming.run(inputs, workers), obstacle, 0

    def _run_again(
        self, inputs: PassInputs, batched: BatchedPass, obstacle: str
    ) -> PassResult:
        """Returns the results of clients one by one, after vectorized work has failed."""
        if not inputs.read_once.is_complete:
            self._give_up_vectorizing(obstacle, batched)
            raise RuntimeError(
                f"The clients' vectorized work failed ({obstacle}), and their data, which "
                "come from Python code, are too large to keep for another try: use "
                "batch_clients=False."
            )
        logging.info("Clients run again one by one: %s", obstacle)
        # If a client is at fault, this raises an error that names it.
        result = self._streaming.run(inputs.to_read_again(), self._resources.workers)
        # Only this cohort may be one that cannot be stacked. After a second failure in a
        # row, trying again would cost more than it is likely to save.
        self._failures += 1
        if self._failures > 1:
            self._give_up_vectorizing(obstacle, batched)
        return result

    def _give_up_vectorizing(self, obstacle: str, batched: BatchedPass) -> None:
        without = _Vectorization(None, obstacle, batched.client_bytes)
        self._vectorized = Lazy(lambda: without)


def _without_gpus(resources: Resources) -> Resources:
    """Replaces GPUs by the CPU for recurrent layers, unless they were asked for.

    TensorFlow starts each op of each time step on its own: two LSTM layers took 12 times
    as long on a GPU (an NVIDIA H100 and 16 Xeon cores, W3 of `benchmarks/runtimes.py`).
    """
    if resources.devices_are_chosen or "GPU" not in resources.devices[0]:
        return resources
    logging.info(
        "Recurrent layers run on the CPU; runtime_devices=['GPU:0'] keeps them."
    )
    return attrs.evolve(resources, devices=(_CPU,), clients_on_gpu=False)


def _is_recurrent(client_pass: ClientPass) -> bool:
    return any(
        isinstance(node, Evaluate)
        and graph_contents.has_loops_over_time(node.leaf.graph_def)
        for node in client_pass.fragment.nodes
    )


def _vectorize(client_pass: ClientPass, resources: Resources) -> _Vectorization:
    """Returns the vectorized pass, if it is possible and expected to be faster."""
    demanded = resources.batch_clients
    if demanded is False:
        return _Vectorization(None, "batch_clients is False")
    if not client_pass.fragment.nodes:
        return _Vectorization(None, "there is only the aggregation")
    if any(each.zeros and not each.num_values for each in client_pass.aggregates):
        return _Vectorization(None, "an aggregate of nothing, which counts clients")
    try:
        work = vectorization.vectorize(client_pass.fragment)
    except vectorization.NotVectorizableError as error:
        _say(error, demanded)
        return _Vectorization(None, str(error))
    batched = BatchedPass(
        client_pass, work, resources.devices, resources.cache, resources.row_memory
    )
    num_bytes = batched.client_bytes
    if resources.clients_on_gpu or num_bytes <= _MAX_CPU_CLIENT_BYTES or demanded:
        return _Vectorization(batched, client_bytes=num_bytes)
    limit = f"above {_MAX_CPU_CLIENT_BYTES / 1000:.0f} kB per client this is faster"
    return _Vectorization(None, f"{limit} on a CPU", num_bytes)


def _say(reason: vectorization.NotVectorizableError, demanded: bool | None) -> None:
    """Logs, once per computation, why its clients run one by one."""
    level = logging.WARNING if demanded else logging.INFO
    # Not the error itself: a handler that keeps records would keep its traceback, which
    # references the pass.
    logging.log(level, "Clients run one by one because of %s.", str(reason))
