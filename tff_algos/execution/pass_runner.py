"""Decides whether a pass over the clients is streaming or vectorized."""

from collections.abc import Sequence

import attrs
import tensorflow as tf
from absl import logging

from tff_algos.execution import client_batches, vectorization
from tff_algos.execution.batched_passes import BatchedPass
from tff_algos.execution.client_passes import (
    PassInputs,
    PassResult,
    StreamingPass,
    Workers,
)
from tff_algos.execution.lazy import Lazy
from tff_algos.execution.plan import ClientPass
from tff_algos.execution.row_memory import RowMemory

# On a CPU, vectorizing over clients saves op overhead, but streaming keeps the weights
# in caches. Measured: vectorizing is faster below about this size of a state.
_MAX_CPU_CLIENT_BYTES = 1 << 18
# With fewer clients, the streaming loop is faster (6x with Adult's two).
_MIN_CLIENTS = 4
# Target size of the states of a chunk; on a CPU, more does not fit into caches.
_CPU_CHUNK_BYTES = 16 << 20
_GPU_CHUNK_BYTES = 4 << 30


@attrs.frozen(eq=False)
class Resources:
    """The resources shared by the computations of a context.

    Attributes:
      devices: The devices; the server is on the first, clients are on all.
      workers: Threads for the clients.
      cache: The cache of clients' batches.
      row_memory: The memory for rows of clients' values.
      batch_clients: Whether to vectorize over clients: whenever possible (`True`),
        never (`False`), or if it is faster (`None`).
      default_num_clients: Number of clients if the arguments do not determine it.
      max_kept_bytes: Memory for clients' values that a pass keeps for later passes.
    """

    devices: Sequence[str]
    workers: Workers
    cache: client_batches.BatchCache
    row_memory: RowMemory
    batch_clients: bool | None
    default_num_clients: int
    max_kept_bytes: int


class PassRunner:
    """Runs a client pass; built once per plan."""

    def __init__(self, client_pass: ClientPass, resources: Resources):
        self._pass = client_pass
        self._resources = resources
        self._streaming = StreamingPass(
            client_pass, resources.devices, resources.row_memory
        )
        # The lambda must not reference this object, to avoid a reference cycle.
        self._batched = Lazy(lambda: _vectorize(client_pass, resources))

    def run(self, inputs: PassInputs) -> PassResult:
        """Runs the pass over all clients.

        Args:
          inputs: The inputs.

        Returns:
          The results; streaming and vectorized passes agree up to rounding.

        Raises:
          ClientError: If the work of a client fails.
        """
        demanded = self._resources.batch_clients
        fewest = 2 if demanded else _MIN_CLIENTS
        batched = self._batched() if inputs.num_clients >= fewest else None
        if batched is not None:
            try:
                on_gpu = _on_gpu(self._resources)
                budget = _GPU_CHUNK_BYTES if on_gpu else _CPU_CHUNK_BYTES
                return batched.run(inputs, self._resources.workers, budget)
            except vectorization.NotVectorizableError as error:
                _say(error, demanded)
                self._batched = Lazy(lambda: None)
            except tf.errors.OpError as error:
                # The streaming pass identifies the client that failed.
                logging.info("Clients run again one by one: %s", error.message)
        return self._streaming.run(inputs, self._resources.workers)


def _vectorize(client_pass: ClientPass, resources: Resources) -> BatchedPass | None:
    """Returns the vectorized pass, if it is possible and expected to be faster."""
    demanded = resources.batch_clients
    if demanded is False or not client_pass.fragment.nodes:
        return None
    try:
        work = vectorization.vectorize(client_pass.fragment)
    except vectorization.NotVectorizableError as error:
        _say(error, demanded)
        return None
    batched = BatchedPass(
        client_pass, work, resources.devices, resources.cache, resources.row_memory
    )
    pays = _on_gpu(resources) or batched.client_bytes <= _MAX_CPU_CLIENT_BYTES
    return batched if pays or demanded else None


def _say(reason: vectorization.NotVectorizableError, demanded: bool | None) -> None:
    """Logs, once per computation, why its clients run one by one."""
    level = logging.WARNING if demanded else logging.INFO
    # Not the error itself: a handler that keeps records would keep its traceback, which
    # references the pass.
    logging.log(level, "Clients run one by one because of %s.", str(reason))


def _on_gpu(resources: Resources) -> bool:
    return "GPU" in resources.devices[0]
