"""The process that runs shares of client passes: a Ray actor."""

import collections
import hashlib
import os
import pathlib
import platform
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.util import _pywrap_util_port

from tff_algos import cpus
from tff_algos.execution import (
    client_batches,
    client_passes,
    devices,
    op_threads,
    pass_runner,
    row_memory,
)
from tff_algos.execution.distributed import kept_datasets, shares

# A pass takes several megabytes; a run has a few.
_MAX_PASSES = 32
# What decides which kernels TensorFlow and oneDNN choose on an x86 processor.
_VECTOR_FLAGS = ("avx", "fma", "amx")


@attrs.frozen
class Versions:
    """What must be the same in all processes.

    Attributes:
      python: Python's version.
      tensorflow: TensorFlow's version.
      tff: TensorFlow Federated's version.
      numpy: NumPy's version, whose generators order examples.
      tff_algos: A digest of the code, that of tasks included, which read examples.
      onednn: Whether TensorFlow uses oneDNN's kernels.
    """

    python: str
    tensorflow: str
    tff: str
    numpy: str
    tff_algos: str
    onednn: bool


@attrs.frozen
class WorkerInfo:
    """A worker process.

    Attributes:
      versions: What it runs.
      host: The name of its machine.
      pid: Its process id.
      devices: The devices that it uses.
      processor: Its processor, as far as results depend on it.
      intra_op_threads: The number of threads that it uses within an op.
    """

    versions: Versions
    host: str
    pid: int
    devices: tuple[str, ...]
    processor: str
    intra_op_threads: int


def versions() -> Versions:
    """Returns the versions of this process."""
    root = pathlib.Path(__file__).parents[3]
    digest = hashlib.sha256()
    for package in ("tasks", "tff_algos"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return Versions(
        platform.python_version(),
        tf.__version__,
        tff.__version__,
        np.__version__,
        digest.hexdigest()[:12],
        bool(_pywrap_util_port.IsMklEnabled()),
    )


def processor() -> str:
    """Returns what kernels and block sizes depend on: instructions and a cache's size."""
    file = pathlib.Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    instructions = platform.machine()
    for line in lines:
        name, _, flags = line.partition(":")
        if name.strip() == "flags":
            vector = [f for f in flags.split() if f.startswith(_VECTOR_FLAGS)]
            instructions = " ".join(sorted(vector))
            break
    return f"{instructions}, level-2 cache of {cpus.level_2_cache_bytes()} bytes"


@attrs.frozen(eq=False)
class Reply:
    """A worker's answer.

    Attributes:
      units: The reply to each unit.
      seconds: How long the worker took.
      missing: Datasets that the worker was expected to keep, but has not; if there are
        some, no unit was run, but what was sent is kept.
      evicted: Datasets that the worker does not keep any more.
    """

    units: Sequence[shares.UnitReply]
    seconds: float
    missing: Sequence[int] = ()
    evicted: Sequence[int] = ()


class Worker:
    """Runs shares; passes, datasets and the server's values stay for later shares."""

    def __init__(
        self,
        num_threads: int,
        num_intra_op_threads: int,
        max_cached_bytes: int = 1 << 30,
    ):
        """Initializes TensorFlow.

        Args:
          num_threads: How many clients run at a time.
          num_intra_op_threads: How many threads to use within an op.
          max_cached_bytes: Memory for clients' datasets and for their batches.
        """
        op_threads.set_count(num_intra_op_threads)
        self._resources = pass_runner.Resources(
            devices=devices.resolve(None),
            workers=client_passes.Workers(num_threads),
            cache=client_batches.BatchCache(max_cached_bytes // 2),
            row_memory=row_memory.RowMemory(),
            batch_clients=None,
            default_num_clients=0,
            max_kept_bytes=0,
        )
        self._datasets = kept_datasets.Store(max_cached_bytes // 2)
        self._passes: collections.OrderedDict[str, shares.PassOfWorker]
        self._passes = collections.OrderedDict()
        self._server_key: int | None = None
        self._server: Any = None

    def describe(self) -> WorkerInfo:
        """Returns what this process is."""
        return WorkerInfo(
            versions(),
            socket.gethostname(),
            os.getpid(),
            tuple(self._resources.devices),
            processor(),
            op_threads.count(),
        )

    def run(
        self,
        pass_key: str,
        pass_box: Sequence[Any],
        server_key: int,
        server_box: Sequence[Any],
        units: Sequence[shares.UnitInputs],
        unused: Iterable[int] = (),
    ) -> Reply:
        """Runs units of a pass.

        Args:
          pass_key: Identifies the pass.
          pass_box: The pass, or a reference to it, in a sequence, so that only a worker
            that lacks it fetches it.
          server_key: Identifies the server's values.
          server_box: The server's values, in the same way.
          units: The units; of the clients' values, `kept_datasets.Keep` stay here.
          unused: The keys of datasets that need not stay any more.

        Returns:
          The replies to the units.
        """
        start = time.perf_counter()
        self._datasets.drop(unused)
        sent = [value for unit in units for column in unit.columns for value in column]
        missing = self._datasets.missing(sent)
        if missing:
            # Otherwise two calls, each lacking what the other brings, would be sent again
            # for ever.
            self._datasets.keep(sent)
            seconds = time.perf_counter() - start
            return Reply((), seconds, missing, self._datasets.evict())
        if pass_key not in self._passes:
            self._passes[pass_key] = shares.PassOfWorker(
                *_opened(pass_box), self._resources
            )
            if len(self._passes) > _MAX_PASSES:
                self._passes.popitem(last=False)
        self._passes.move_to_end(pass_key)
        own = self._passes[pass_key]
        if server_key != self._server_key:
            self._server = own.unpack_server(_opened(server_box))
            self._server_key = server_key
        opened = [
            attrs.evolve(unit, columns=list(map(self._datasets.opened, unit.columns)))
            for unit in units
        ]
        replies = own.run(self._server, opened)
        evicted = self._datasets.evict()
        return Reply(replies, time.perf_counter() - start, evicted=evicted)


def _opened(box: Sequence[Any]) -> Any:
    (content,) = box
    if isinstance(content, list | tuple):
        return content
    import ray

    return ray.get(content)
