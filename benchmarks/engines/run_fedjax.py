"""FedJAX's federated averaging, with its default backend for one CPU: jit."""

import argparse
import functools

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg

from benchmarks.engines import jax_models, recorder, workloads


def _build_model(workload: workloads.Workload) -> fedjax.Model:
    logits = jax_models.logits_fn(workload)
    return fedjax.Model(
        init=lambda rng: None,  # The initial weights are given.
        apply_for_train=lambda weights, batch, rng: logits(weights, batch["x"]),
        apply_for_eval=lambda weights, batch: logits(weights, batch["x"]),
        train_loss=lambda batch, preds: jax_models.example_losses(preds, batch["y"]),
        eval_metrics={},
    )


def _build_clients(inputs: workloads.Inputs) -> list[tuple]:
    """Returns (id, dataset, random key) of every client."""
    return [
        (
            str(client).encode(),
            fedjax.ClientDataset({"x": x, "y": y}),
            jax.random.PRNGKey(client),
        )
        for client, (x, y) in enumerate(zip(inputs.x, inputs.y, strict=True))
    ]


def run(
    inputs: workloads.Inputs, record: recorder.Recorder, _: argparse.Namespace
) -> None:
    """Trains `inputs`."""
    workload = inputs.workload
    clients = _build_clients(inputs)
    record.start()
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(_build_model(workload)),
        fedjax.optimizers.sgd(workload.learning_rate),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=workload.batch_size, skip_shuffle=True
        ),
    )
    state = algorithm.init([jnp.asarray(weight) for weight in inputs.weights])
    another = True
    while another:
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        another = record.finish_round(
            functools.partial(jax.tree_util.tree_map, np.asarray, state.params)
        )


if __name__ == "__main__":
    recorder.main(run)
