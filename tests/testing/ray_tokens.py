"""Clusters that ask for a token, or for none, and drivers that have one, or none.

    python -m tests.testing.ray_tokens token|disabled

Prints as JSON what each driver of a cluster in that mode found. Processes of their own,
because one has one Ray and one mode.
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

    # Whoever joins a cluster on the loopback interface has to be there as well.
    with cluster_lib._on_loopback():
        try:
            cluster = cluster_lib.open_cluster(address, 1, {"CPU": 1})
        except cluster_lib.ClusterError as error:
            return str(error)
    greeter = cluster.ray.remote(Greeter).options(num_cpus=1).remote()
    answer = cluster.ray.get(greeter.greet.remote(), timeout=60.0)
    cluster.close()
    return answer


def _told_by_drivers(mode: str) -> dict[str, str]:
    # Not the token of the user of this machine.
    os.environ["HOME"] = tempfile.mkdtemp()
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
        os.environ.update(of_cluster)
    return told


def main() -> None:
    (argument,) = sys.argv[1:]
    if argument in ("token", "disabled"):
        print(json.dumps(_told_by_drivers(argument)), flush=True)
        os._exit(0)
    print(_join(argument), flush=True)


if __name__ == "__main__":
    main()
