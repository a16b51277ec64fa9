"""Apple's pfl-research: its simulated backend and FederatedAveraging, in PyTorch."""

import argparse
import asyncio

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn

from benchmarks.engines import recorder, torch_models, workloads

# The recorder ends the training; there is no evaluation after the first round.
_NEVER = 2**31


class _Module(nn.Module):
    """A module with the two methods that pfl requires."""

    def __init__(self, inputs: workloads.Inputs):
        super().__init__()
        self.module = torch_models.build(inputs.workload)
        torch_models.load_weights(self.module, inputs.weights)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch_models.mean_loss(self.module, x, y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        del x, y  # There are no metrics.
        return {}


class _Record(TrainingProcessCallback):
    """Reports every round to the recorder and stops when it decides so."""

    def __init__(self, record: recorder.Recorder, get_weights):
        self._record = record
        self._get_weights = get_weights

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        del aggregate_metrics, model, central_iteration
        another = self._record.finish_round(self._get_weights)
        return not another, Metrics()


def _build_backend(inputs: workloads.Inputs) -> SimulatedBackend:
    x, y = torch_models.tensors(inputs.workload, inputs.x, inputs.y)
    users = [
        PyTorchTensorDataset(client, user_id=str(n))
        for n, client in enumerate(zip(x, y, strict=True))
    ]
    sampler = get_user_sampler("minimize_reuse", range(len(users)))
    return SimulatedBackend(
        training_data=FederatedDataset(users.__getitem__, sampler),
        val_data=None,
        postprocessors=[WeightByDatapoints()],
    )


def run(
    inputs: workloads.Inputs, record: recorder.Recorder, _: argparse.Namespace
) -> None:
    """Trains `inputs`."""
    workload = inputs.workload
    np.random.seed(0)  # pfl draws its own seeds.
    asyncio.set_event_loop(asyncio.new_event_loop())
    backend = _build_backend(inputs)
    record.start()
    module = _Module(inputs)
    model = PyTorchModel(
        module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=_NEVER,
            evaluation_frequency=_NEVER,
            train_cohort_size=workload.num_clients,
            val_cohort_size=0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=workload.batch_size,
            local_num_epochs=1,
            local_learning_rate=workload.learning_rate,
        ),
        callbacks=[
            _Record(record, lambda: torch_models.get_weights(workload, module.module))
        ],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    recorder.main(run)
