"""The client code of Flower's actors, a separate module that they import once."""

import functools

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.engines import torch_models, workloads


@functools.cache
def _load_clients(path: str) -> tuple[workloads.Workload, list]:
    """Returns the workload and every client's batches, once per actor."""
    inputs = workloads.load(path)
    x, y = torch_models.tensors(inputs.workload, *inputs.batches())
    return inputs.workload, list(zip(x, y, strict=True))


@functools.cache
def _load_module(path: str) -> torch.nn.Module:
    return torch_models.build(_load_clients(path)[0])


def _train(path: str, message: Message, context: Context) -> Message:
    """Trains one client from the message's weights; runs in an actor."""
    workload, clients = _load_clients(path)
    module = _load_module(path)
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=workload.learning_rate)
    x, y = clients[context.node_config["partition-id"]]
    for batch in zip(x, y, strict=True):
        optimizer.zero_grad()
        torch_models.mean_loss(module, *batch).backward()
        optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": workload.examples_per_client}),
        }
    )
    return Message(content=content, reply_to=message)


def build(path: str) -> ClientApp:
    """Returns an app that trains the clients of the workload file `path`."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _train(path, message, context)

    return app
