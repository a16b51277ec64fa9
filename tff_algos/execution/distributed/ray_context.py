"""Runs the client passes of TFF computations on Ray, with one process's results.

The driver, which is this process, compiles and plans a computation, runs its server
stages, and adds clients' values in the clients' order. Workers run the clients.
"""

import contextlib
import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import tensorflow_federated as tff

from tff_algos.execution import default_context, in_process
from tff_algos.execution.distributed import cluster as cluster_lib
from tff_algos.execution.distributed.fleet import Fleet
from tff_algos.execution.distributed.remote_workers import RemoteWorkers, Traffic
from tff_algos.execution.distributed.worker import WorkerInfo


class RayContext(in_process.InProcessContext):
    """An in-process context whose clients run in workers."""

    def __init__(
        self,
        num_workers: int | None = None,
        address: str | None = None,
        resources_per_worker: Mapping[str, float] | None = None,
        clients_per_sum: int = 1,
        start_seconds: float = 300.0,
        max_cached_bytes: int = 1 << 30,
        intra_op_threads: int | None = None,
        **kwargs: Any,
    ):
        """Initializes the context; see `set_ray_context` for the arguments."""
        if kwargs.get("num_threads") is not None:
            raise ValueError(
                f"num_threads={kwargs['num_threads']} cannot be set: a worker runs as many "
                "clients at a time as it has CPUs (resources_per_worker)."
            )
        per_worker = dict(resources_per_worker or {"CPU": 1})
        _check(num_workers, per_worker, clients_per_sum, intra_op_threads)
        super().__init__(max_cached_bytes=max_cached_bytes, **kwargs)
        cluster = cluster_lib.open_cluster(address, num_workers, per_worker)
        try:
            self._fleet = Fleet(
                cluster,
                cluster.num_workers,
                per_worker,
                start_seconds,
                max_cached_bytes,
                intra_op_threads,
            )
        except BaseException:
            cluster.close()
            raise
        self._workers = RemoteWorkers(cluster.ray, self._fleet, clients_per_sum)
        on_gpu = any("GPU" in d for info in self._fleet.infos for d in info.devices)
        self._resources = attrs.evolve(
            self._resources, workers=self._workers, clients_on_gpu=on_gpu
        )
        self._close = weakref.finalize(
            self, _close_all, self._fleet, cluster, os.getpid()
        )

    @property
    def traffic(self) -> Traffic:
        """What the last pass over clients sent, received and took."""
        return self._workers.traffic

    @property
    def total_traffic(self) -> Traffic:
        """What all passes so far sent, received and took."""
        return self._workers.total_traffic

    @property
    def workers(self) -> list[WorkerInfo]:
        """The workers that have started."""
        return self._fleet.infos

    def close(self) -> None:
        """Ends the workers, and Ray if the context started it; idempotent.

        It happens by itself when the program ends.
        """
        self._close()


def set_ray_context(
    num_workers: int | None = None,
    address: str | None = None,
    resources_per_worker: Mapping[str, float] | None = None,
    clients_per_sum: int = 1,
    start_seconds: float = 300.0,
    max_cached_bytes: int = 1 << 30,
    intra_op_threads: int | None = None,
    **kwargs: Any,
) -> RayContext:
    """Makes Ray workers run clients, as this thread's default context.

    Results do not depend on the number of workers, nor on which of them fail. With
    `clients_per_sum=1` they are those of the in-process context to the bit, if
    TensorFlow uses as many threads within an op there, and processors are of the same
    kind.

    Args:
      num_workers: The number of workers; `None` for as many as there is room for.
      address: `HOST:PORT` of a Ray cluster to join; `None` to start Ray on this machine
        and end it with the program. A program that has called `ray.init` goes on with
        that Ray.
      resources_per_worker: What Ray reserves for a worker, by default `{"CPU": 1}`; use
        `{"GPU": 1}` for a worker per GPU. A worker runs as many clients at a time as it
        has CPUs.
      clients_per_sum: How many clients' values a worker adds before it sends them,
        where clients run one by one and are only summed. More than 1 sends less;
        results then differ from one process's by rounding.
      start_seconds: How long to wait for the workers, which import TensorFlow.
      max_cached_bytes: Each worker's memory for clients' datasets and their batches,
        which are sent once as long as they fit and the same datasets are used.
      intra_op_threads: How many threads a worker uses within an op. `None` for as many
        as this process, for its bits; a worker with one CPU is faster with 1.
      **kwargs: As in `set_in_process_context`, without `num_threads`;
        `runtime_devices` are those of the driver.

    Returns:
      The context. It replaces this thread's default context and, outside of `with`
      statements that install another, closes an earlier Ray context.

    Raises:
      ClusterError: If Ray is missing, or what was asked for cannot be had.
      ValueError: If an argument is out of range.
    """
    current = tff.framework.get_context_stack().current
    if isinstance(current, RayContext) and not default_context.is_installed():
        # Its workers would keep what the new ones need.
        current.close()
    context = RayContext(
        num_workers,
        address=address,
        resources_per_worker=resources_per_worker,
        clients_per_sum=clients_per_sum,
        start_seconds=start_seconds,
        max_cached_bytes=max_cached_bytes,
        intra_op_threads=intra_op_threads,
        **kwargs,
    )
    tff.framework.set_default_context(context)
    return context


def total_traffic() -> Traffic | None:
    """Returns what the passes of this thread's context sent, received and took so far.

    Returns:
      The traffic; `None` if the context is not a `RayContext`.
    """
    current = tff.framework.get_context_stack().current
    return current.total_traffic if isinstance(current, RayContext) else None


@contextlib.contextmanager
def ray_context(num_workers: int | None = None, **kwargs: Any) -> Iterator[RayContext]:
    """Runs the body in a new `RayContext`, and closes it.

    Args:
      num_workers: As in `set_ray_context`.
      **kwargs: As in `set_ray_context`.

    Yields:
      The context.
    """
    with (
        contextlib.closing(RayContext(num_workers, **kwargs)) as context,
        tff.framework.get_context_stack().install(context),
    ):
        yield context


def _close_all(fleet: Fleet, cluster: cluster_lib.Cluster, owner: int) -> None:
    if os.getpid() == owner:  # Not in a fork of the owner.
        fleet.close()
        cluster.close()


def _check(
    num_workers: int | None,
    per_worker: Mapping[str, float],
    clients_per_sum: int,
    intra_op_threads: int | None,
) -> None:
    for name, value in (
        ("num_workers", num_workers),
        ("clients_per_sum", clients_per_sum),
        ("intra_op_threads", intra_op_threads),
    ):
        if value is not None and value < 1:
            raise ValueError(f"Expected {name} of at least 1, found {value}.")
    for name, amount in per_worker.items():
        if amount <= 0:
            raise ValueError(
                f"Expected resources_per_worker of more than 0, found {name}: "
                f"{amount:g}."
            )
