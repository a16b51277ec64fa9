"""Runs main.py's `main` on a cluster of one node on the loopback interface.

    python -m tests.testing.ray_commands --algo=fedavg --task=emnist --runtime=ray

The node has two CPUs, and a GPU that only Ray counts. Its address replaces that of the
command; with `auto`, Ray finds it itself.
"""

import os
import sys

from tests.testing import ray_nodes
from tff_algos.execution.distributed import cluster as cluster_lib
from tff_algos.experiments import cli


def main() -> None:
    cli.define_flags()
    with ray_nodes.started() as nodes:
        nodes.add_node(num_cpus=2, num_gpus=1)
        arguments = [*sys.argv]
        if "--ray_address=auto" in arguments:
            os.environ["RAY_ADDRESS"] = nodes.address
        else:
            arguments.append(f"--ray_address={nodes.address}")
        try:
            cli.run_parsed(cli.parse_flags(arguments))
        except SystemExit as end:
            status = end.code
        # Ray ends no node to which it is connected.
        cluster_lib.import_ray().shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
