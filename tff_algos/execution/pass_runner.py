"""Decides how a pass over the clients runs: one by one, or many at a time."""

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

# On a CPU many clients at a time save the overhead of ops, one by one the weights
# stay in its caches. Measured: the first wins below about this size of a state.
_MAX_CPU_CLIENT_BYTES = 1 << 18
# A step of a few clients at a time is dearer than theirs one by one, in a loop that
# never leaves TensorFlow. Measured: Adult's 2 clients, 6 times.
_MIN_CLIENTS = 4
# What the states of a chunk should take; on a CPU more does not stay in its caches.
_CPU_CHUNK_BYTES = 16 << 20
_GPU_CHUNK_BYTES = 4 << 30


@attrs.frozen(eq=False)
class Resources:
    """What computations of a context run with.

    Attributes:
      devices: The server is on the first, clients are on all.
      workers: Threads for the clients.
      cache: Of clients' batches.
      row_memory: For rows of what clients give.
      batch_clients: Whether to run many clients at a time: always where that is
        possible, never, or where it pays (`None`).
      default_num_clients: Of computations whose arguments do not tell.
      max_kept_bytes: Memory for what a pass keeps of the clients for later ones.
    """

    devices: Sequence[str]
    workers: Workers
    cache: client_batches.BatchCache
    row_memory: RowMemory
    batch_clients: bool | None
    default_num_clients: int
    max_kept_bytes: int


class PassRunner:
    """Runs a client pass; made once for a plan."""

    def __init__(self, client_pass: ClientPass, resources: Resources):
        self._pass = client_pass
        self._resources = resources
        self._streaming = StreamingPass(
            client_pass, resources.devices, resources.row_memory
        )
        # Of nothing that holds this object, which would then be in a reference cycle.
        self._batched = Lazy(lambda: _vectorize(client_pass, resources))

    def run(self, inputs: PassInputs) -> PassResult:
        """Runs the pass over all clients.

        Args:
          inputs: Its values.

        Returns:
          Its results, which do not depend on how it runs but for rounding.

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
                # One by one it turns out whose work failed.
                logging.info("Clients run again one by one: %s", error.message)
        return self._streaming.run(inputs, self._resources.workers)


def _vectorize(client_pass: ClientPass, resources: Resources) -> BatchedPass | None:
    """Returns the pass for many clients at a time, if that is possible and pays."""
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
    """Says, once for a computation, why its clients run one by one."""
    level = logging.WARNING if demanded else logging.INFO
    # Not the error itself: a handler that keeps records would keep its traceback, and
    # in there the pass.
    logging.log(level, "Clients run one by one because of %s.", str(reason))


def _on_gpu(resources: Resources) -> bool:
    return "GPU" in resources.devices[0]
