"""A cluster of several raylets on the loopback interface, of which one is lost.

    python -m tests.testing.ray_nodes

Prints what happened as JSON. A process of its own, because a process has one Ray.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from tff_algos import compat  # noqa: F401  # isort: skip

import attrs
import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.plane_processes import points, process
from tff_algos import execution
from tff_algos.execution.distributed import cluster as cluster_lib
from tff_algos.execution.distributed import worker
from tff_algos.execution.distributed.janitor import Janitor

_PER_WORKER = {"CPU": 1, "GPU": 1}
_MAX_WAIT_SECONDS = 180.0


@contextlib.contextmanager
def started() -> Iterator:
    """Starts a head without CPUs, and ends all raylets."""
    cluster_lib.import_ray()
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    janitor = Janitor(folder)
    # Ray's own name below it.
    os.environ["RAY_TMPDIR"] = folder
    os.mkdir(f"{folder}/ray")
    with janitor.marking(), cluster_lib._on_loopback():
        from ray.cluster_utils import Cluster

        nodes = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "num_gpus": 0,
                "include_dashboard": False,
                "node_ip_address": "127.0.0.1",
            },
        )
        try:
            yield nodes
        finally:
            nodes.shutdown()
            janitor.end()


def _error(**kwargs) -> str:
    """Returns the message of a context that does not start."""
    try:
        execution.RayContext(**kwargs).close()
    except execution.ClusterError as error:
        return str(error)
    raise AssertionError(f"{kwargs} started.")


def _num_workers() -> int:
    """Returns the number of processes of actors."""
    found = 0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += "ray::Worker" in " ".join(child.cmdline())
    return found


def _no_workers_left() -> bool:
    _wait_until(lambda: not _num_workers())
    return True


def _rounds(context, learning, cohort, before_round=lambda number: None) -> list:
    with tff.framework.get_context_stack().install(context):
        state = learning.initialize()
        for number in range(4):
            before_round(number)
            state = learning.next(state, cohort).state
    return [np.asarray(each) for each in tf.nest.flatten(state)]


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _MAX_WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _has_two_workers(context) -> bool:
    context._fleet.wait(0.1)
    return len(context.workers) == 2


def main() -> None:
    told = {}
    with started() as nodes:
        # Logical GPUs: Ray counts them, TensorFlow sees none.
        first, _ = (nodes.add_node(num_cpus=2, num_gpus=1) for _ in range(2))
        address = {"address": nodes.address, "resources_per_worker": _PER_WORKER}
        told["too many"] = _error(num_workers=3, **address)
        versions = worker.versions
        worker.versions = lambda: attrs.evolve(versions(), python="2.7.18")
        told["other version"] = _error(num_workers=1, **address)
        worker.versions = versions
        told["nothing left"] = _no_workers_left()

        learning = process("two layers", "momentum")
        cohort = [points(3 + k % 5, k).batch(2) for k in range(40)]
        here = execution.InProcessContext(batch_clients=False)
        expected = _rounds(here, learning, cohort)
        context = execution.RayContext(batch_clients=False, **address)
        told["workers"] = len(context.workers)
        submit = context._fleet.submit

        def submit_and_lose_a_node(num_units, run):
            context._fleet.submit = submit
            call = submit(num_units, run)
            pids = [info.pid for info in context.workers]
            nodes.remove_node(first, allow_graceful=False)
            _wait_until(lambda: not all(map(psutil.pid_exists, pids)))
            return call

        def lose_and_add(number: int) -> None:
            if number == 1:
                context._fleet.submit = submit_and_lose_a_node
            elif number == 2:
                told["workers after the loss"] = len(context.workers)
                nodes.add_node(num_cpus=2, num_gpus=1)
                _wait_until(lambda: _has_two_workers(context))
                told["workers after the addition"] = len(context.workers)

        found = _rounds(context, learning, cohort, lose_and_add)
        told["same bits"] = all(map(np.array_equal, found, expected))
        context.close()
        told["nothing left at the end"] = _no_workers_left()
    print(json.dumps(told), flush=True)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
