"""Two Ray workers that tests share, and contexts of several kinds that use them."""

import attrs

from tff_algos import execution
from tff_algos.execution.distributed.remote_workers import RemoteWorkers

NUM_WORKERS = 2


def start() -> execution.RayContext:
    """Starts Ray on the loopback interface, with two workers."""
    return execution.RayContext(NUM_WORKERS)


def sharing(
    shared: execution.RayContext, clients_per_sum: int = 1, **kwargs
) -> execution.InProcessContext:
    """Returns a context that uses another context's workers.

    Args:
      shared: The context that has the workers.
      clients_per_sum: As in `set_ray_context`.
      **kwargs: As in `set_in_process_context`.
    """
    context = execution.InProcessContext(**kwargs)
    workers = RemoteWorkers(shared._workers._ray, shared._fleet, clients_per_sum)
    context._resources = attrs.evolve(context._resources, workers=workers)
    return context
