"""Clusters that require a token, or none, and drivers that have one, or none.

    python -m tests.testing.ray_tokens token|disabled

Prints as JSON what each driver of a cluster in that mode found. Every driver is a process
of its own, because Ray reads the mode once per process.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from tests.testing import ray_nodes
from tff_algos.execution.distributed import cluster as cluster_lib

_ROOT = pathlib.Path(__file__).parents[2]


def _told_by_driver(address: str, **environment: str) -> str:
    command = [sys.executable, "-m", "tests.testing.ray_tokens", address]
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.splitlines()[-1]


def _join(address: str) -> str:
    """Joins a cluster and starts an actor; returns its answer, or what is wrong."""

    class Greeter:
        def greet(self) -> str:
            return "joined"

    # Ray would look for the cluster at this machine's other address.
    with cluster_lib._on_loopback():
        try:
            cluster = cluster_lib.open_cluster(address, 1, {"CPU": 1})
        except cluster_lib.ClusterError as error:
            return str(error)
    greeter = cluster.ray.remote(Greeter).options(num_cpus=1).remote()
    answer = cluster.ray.get(greeter.greet.remote(), timeout=60.0)
    cluster.close()
    return answer


def _told_by_drivers(mode: str, home: str) -> dict[str, str]:
    """Starts a cluster, and drivers whose home folder has no token."""
    os.environ["HOME"] = home
    token = {"RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef"}
    of_cluster = {**token, "RAY_AUTH_MODE": mode}
    os.environ.update(of_cluster)
    with ray_nodes.started() as nodes:
        nodes.add_node(num_cpus=1)
        for name in of_cluster:
            del os.environ[name]
        other = "disabled" if mode == "token" else "token"
        told = {
            "with a token": _told_by_driver(nodes.address, **token),
            "without": _told_by_driver(nodes.address),
            "other mode": _told_by_driver(nodes.address, **token, RAY_AUTH_MODE=other),
        }
        # Ending the cluster is a request as well.
        os.environ.update(of_cluster)
    return told


def main() -> None:
    (argument,) = sys.argv[1:]
    if argument in ("token", "disabled"):
        with tempfile.TemporaryDirectory() as home:
            print(json.dumps(_told_by_drivers(argument, home)), flush=True)
        os._exit(0)
    print(_join(argument), flush=True)


if __name__ == "__main__":
    main()
