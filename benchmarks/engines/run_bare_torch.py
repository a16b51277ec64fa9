"""FedAvg written by hand in PyTorch.

Clients train one by one, with as little overhead as PyTorch allows; dense models train
for all clients at once, with batched matrix products.
"""

import argparse

import torch
from torch.nn import functional

from benchmarks.engines import recorder, torch_models, workloads


class _OneByOne:
    """Trains clients one by one in one module."""

    def __init__(self, inputs: workloads.Inputs):
        self._workload = inputs.workload
        self._module = torch_models.build(inputs.workload)
        torch_models.load_weights(self._module, inputs.weights)
        self._parameters = torch_models.trained_parameters(self._module)
        x, y = torch_models.tensors(inputs.workload, *inputs.batches())
        self._clients = list(zip(x, y, strict=True))

    def train_round(self) -> None:
        start = [p.detach().clone() for p in self._parameters]
        sums = [torch.zeros_like(p) for p in self._parameters]
        for x, y in self._clients:
            torch._foreach_copy_([p.data for p in self._parameters], start)
            for batch in zip(x, y, strict=True):
                self._step(*batch)
            torch._foreach_add_(sums, [p.data for p in self._parameters])
        torch._foreach_div_(sums, len(self._clients))
        torch._foreach_copy_([p.data for p in self._parameters], sums)

    def _step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        loss = torch_models.mean_loss(self._module, x, y)
        gradients = torch.autograd.grad(loss, self._parameters)
        with torch.no_grad():
            rate = self._workload.learning_rate
            torch._foreach_add_(self._parameters, gradients, alpha=-rate)

    def weights(self) -> list:
        return torch_models.get_weights(self._workload, self._module)


class _AllAtOnce:
    """Trains the dense model of every client in one batch of models."""

    def __init__(self, inputs: workloads.Inputs):
        self._workload = inputs.workload
        self._weights = [torch.from_numpy(weight) for weight in inputs.weights]
        x, y = torch_models.tensors(inputs.workload, *inputs.batches())
        # [steps, clients, batch, ...]
        self._batches = [(x[:, n].clone(), y[:, n].clone()) for n in range(x.shape[1])]

    def train_round(self) -> None:
        num_clients = self._workload.num_clients
        local = [w.expand(num_clients, *w.shape) for w in self._weights]
        for x, y in self._batches:
            local = self._step(local, x, y)
        self._weights = [w.mean(0) for w in local]

    def _step(
        self, local: list[torch.Tensor], x: torch.Tensor, y: torch.Tensor
    ) -> list[torch.Tensor]:
        local = [w.detach().requires_grad_() for w in local]
        *hidden, kernel, bias = local
        if hidden:
            x = functional.relu(torch.baddbmm(hidden[1].unsqueeze(1), x, hidden[0]))
        logits = torch.baddbmm(bias.unsqueeze(1), x, kernel)
        # The sum over clients of each client's mean loss.
        loss = functional.cross_entropy(
            logits.flatten(0, 1), y.flatten(), reduction="sum"
        )
        gradients = torch.autograd.grad(loss / y.shape[1], local)
        rate = self._workload.learning_rate
        return list(
            torch._foreach_add([w.detach() for w in local], gradients, alpha=-rate)
        )

    def weights(self) -> list:
        return [w.numpy() for w in self._weights]


def run(
    inputs: workloads.Inputs, record: recorder.Recorder, _: argparse.Namespace
) -> None:
    """Trains `inputs`."""
    record.start()
    batched = inputs.workload.model == "dense"
    trainer = (_AllAtOnce if batched else _OneByOne)(inputs)
    another = True
    while another:
        trainer.train_round()
        another = record.finish_round(trainer.weights)


if __name__ == "__main__":
    recorder.main(run)
