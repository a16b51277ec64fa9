"""Flower's simulation on Ray: one actor per core, PyTorch in the actors."""

import argparse
import functools
import os
import tempfile

# Disables telemetry; must precede the imports of Flower and Ray.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.engines import flower_client, recorder, torch_models, workloads


def _build_server_app(inputs: workloads.Inputs, record: recorder.Recorder) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        del context  # `inputs` has all information.
        module = torch_models.build(inputs.workload)
        torch_models.load_weights(module, inputs.weights)
        num_clients = inputs.workload.num_clients
        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_train_nodes=num_clients,
            min_available_nodes=num_clients,
        )

        def weights(arrays: ArrayRecord):
            module.load_state_dict(arrays.to_torch_state_dict())
            return torch_models.get_weights(inputs.workload, module)

        arrays = ArrayRecord(module.state_dict())
        another = True
        while another:
            arrays = strategy.start(grid, arrays, num_rounds=1).arrays
            another = record.finish_round(functools.partial(weights, arrays))

    return app


def run(
    inputs: workloads.Inputs, record: recorder.Recorder, arguments: argparse.Namespace
) -> None:
    """Trains `inputs`."""
    record.start()
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        run_simulation(
            server_app=_build_server_app(inputs, record),
            client_app=flower_client.build(os.path.abspath(arguments.inputs[0])),
            num_supernodes=inputs.workload.num_clients,
            backend_config={
                "init_args": {"num_cpus": _num_cpus(), "_temp_dir": folder},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )


def _num_cpus() -> int:
    """Returns the CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


if __name__ == "__main__":
    recorder.main(run)
