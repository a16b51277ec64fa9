"""FedAvg written by hand in JAX: one program for all clients, or one per client."""

import argparse
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from benchmarks.engines import jax_models, recorder, workloads


def _build_local_training(workload: workloads.Workload) -> Callable:
    """Returns the function from (weights, x, y) of a client to its weights."""
    loss = jax_models.mean_loss(workload)

    def step(weights, batch):
        gradients = jax.grad(loss)(weights, *batch)
        stepped = [
            w - workload.learning_rate * g
            for w, g in zip(weights, gradients, strict=True)
        ]
        return stepped, None

    # XLA runs convolutions inside a loop on only one thread.
    unroll = workload.model == "cnn"

    def train(weights, x, y):
        return jax.lax.scan(step, weights, (x, y), unroll=unroll)[0]

    return train


def _build_round(inputs: workloads.Inputs) -> Callable[[list], list]:
    """Returns the function from weights to the weights after one round."""
    x, y = (jnp.asarray(values) for values in inputs.batches())
    train = _build_local_training(inputs.workload)
    if inputs.workload.model == "dense":

        @jax.jit
        def train_all(weights, x, y):
            trained = jax.vmap(train, in_axes=(None, 0, 0))(weights, x, y)
            return [jnp.mean(weight, axis=0) for weight in trained]

        return functools.partial(train_all, x=x, y=y)

    # For the other models, batching the clients is slower on a CPU.
    train_one = jax.jit(train)
    clients = list(zip(x, y, strict=True))

    @jax.jit
    def mean(trained):
        return [sum(same) / len(same) for same in zip(*trained, strict=True)]

    return lambda weights: mean([train_one(weights, *client) for client in clients])


def run(
    inputs: workloads.Inputs, record: recorder.Recorder, _: argparse.Namespace
) -> None:
    """Trains `inputs`."""
    record.start()
    train_round = _build_round(inputs)
    weights = [jnp.asarray(weight) for weight in inputs.weights]
    another = True
    while another:
        weights = jax.block_until_ready(train_round(weights))
        another = record.finish_round(functools.partial(list, weights))


if __name__ == "__main__":
    recorder.main(run)
