"""FedAvg written by hand in TensorFlow: a lower bound for our own runtime.

Dense models train for all clients at once; the others train client by client, in one
function, without datasets, metrics or federated types. (The models come from this
project, whose import includes TFF, so the start-up time is not TensorFlow's.)
"""

import argparse
import functools
from collections.abc import Callable

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow as tf

from benchmarks.engines import recorder, tf_models, workloads

_Round = Callable[[list[tf.Tensor]], list[tf.Tensor]]


def _build_batched_round(inputs: workloads.Inputs) -> _Round:
    """Returns a round of the dense model with a leading axis of clients."""
    workload = inputs.workload
    # [steps, clients, batch, ...]
    x, y = (tf.constant(values.swapaxes(0, 1)) for values in inputs.batches())

    def step(weights, x, y):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            *hidden, kernel, bias = weights
            if hidden:
                hidden_kernel, hidden_bias = hidden
                x = tf.nn.relu(tf.matmul(x, hidden_kernel) + hidden_bias[:, None])
            logits = tf.matmul(x, kernel) + bias[:, None]
            # The sum over clients of each client's mean loss.
            loss = tf_models.mean_loss(logits, y) * workload.num_clients
        return _sgd(weights, tape.gradient(loss, weights), workload.learning_rate)

    @tf.function
    def train_round(weights, x, y):
        local = [
            tf.tile(w[None], [workload.num_clients, *([1] * w.shape.rank)])
            for w in weights
        ]
        for n in tf.range(workload.num_steps):
            local = step(local, x[n], y[n])
        return [tf.reduce_mean(w, axis=0) for w in local]

    return lambda weights: train_round(weights, x, y)


def _build_round(inputs: workloads.Inputs) -> _Round:
    """Returns a round that trains clients one by one."""
    workload = inputs.workload
    logits = tf_models.logits_fn(workload)
    x, y = (tf.constant(values) for values in inputs.batches())

    def step(weights, x, y):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = tf_models.mean_loss(logits(weights, x), y)
        return _sgd(weights, tape.gradient(loss, weights), workload.learning_rate)

    @tf.function
    def train(weights, x, y):
        for n in tf.range(workload.num_steps):
            weights = step(weights, x[n], y[n])
        return weights

    @tf.function
    def train_round(weights, x, y):
        # The calls are independent, so TensorFlow runs them in parallel threads.
        trained = [train(weights, x[n], y[n]) for n in range(workload.num_clients)]
        return [
            tf.add_n(list(same)) / workload.num_clients
            for same in zip(*trained, strict=True)
        ]

    return lambda weights: train_round(weights, x, y)


def _sgd(weights, gradients, learning_rate: float) -> list[tf.Tensor]:
    return [w - learning_rate * g for w, g in zip(weights, gradients, strict=True)]


def run(
    inputs: workloads.Inputs, record: recorder.Recorder, _: argparse.Namespace
) -> None:
    """Trains `inputs`."""
    record.start()
    batched = inputs.workload.model == "dense"
    train_round = (_build_batched_round if batched else _build_round)(inputs)
    weights = [tf.constant(weight) for weight in inputs.weights]
    another = True
    while another:
        weights = train_round(weights)
        values = [w.numpy() for w in weights]  # Waits for the computation.
        another = record.finish_round(functools.partial(list, values))


if __name__ == "__main__":
    recorder.main(run)
