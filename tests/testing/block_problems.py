"""A small classifier of three blocks, with NumPy answers."""

import itertools
from collections.abc import Callable

import attrs
import numpy as np
import tensorflow as tf

from tests.testing import problems
from tff_algos.models.block_model import BlockModel, layer

NUM_CLASSES = 3
_SIZES = (problems.NUM_FEATURES, 4, 3, NUM_CLASSES)


def _dense(x, kernel, bias):
    return tf.linalg.matmul(x, kernel) + bias


def _hidden(x, kernel, bias):
    return tf.tanh(_dense(x, kernel, bias))


def _loss(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, output))


def initial_weights() -> list[np.ndarray]:
    """Kernel and bias of each block, float64."""
    rng = np.random.default_rng(7)
    weights = []
    for size, next_size in itertools.pairwise(_SIZES):
        weights += [
            0.7 * rng.normal(size=[size, next_size]),
            rng.normal(size=next_size),
        ]
    return weights


def initial_vector() -> np.ndarray:
    """The initial weights as one vector."""
    return np.concatenate([np.ravel(weight) for weight in initial_weights()])


def block_model(dtype=np.float64) -> BlockModel:
    """Two hidden blocks and a classifier; the loss is the mean cross-entropy."""
    weights = [weight.astype(dtype) for weight in initial_weights()]
    functions = (_hidden, _hidden, _dense)
    return BlockModel(
        [layer(f, *weights[2 * k : 2 * k + 2]) for k, f in enumerate(functions)],
        loss_fn=_loss,
        metrics_fns=problems.LOSS_METRICS,
        input_spec=(
            tf.TensorSpec([None, problems.NUM_FEATURES], dtype),
            tf.TensorSpec([None], tf.int32),
        ),
    )


def levels(vector: np.ndarray, x: np.ndarray, start: int = 0) -> list[np.ndarray]:
    """What blocks from `start` on give, in NumPy; `x` is what block `start` takes."""
    found, at = [], 0
    for k, (size, next_size) in enumerate(itertools.pairwise(_SIZES)):
        kernel = vector[at : at + size * next_size].reshape(size, next_size)
        at += size * next_size
        bias = vector[at : at + next_size]
        at += next_size
        if k >= start:
            x = x @ kernel + bias
            x = np.tanh(x) if k < len(_SIZES) - 2 else x
            found.append(x)
    return found


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Along the last axis; of complex logits too."""
    return logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> complex:
    """The mean over the examples."""
    return -np.mean(log_softmax(logits)[np.arange(len(labels)), labels])


def gradient(
    function: Callable[[np.ndarray], complex], point: np.ndarray
) -> np.ndarray:
    """The gradient of an analytic function, exact to rounding, by complex steps."""
    step = 1e-30
    points = point + 1j * step * np.eye(len(point))
    return np.array([np.imag(function(p)) / step for p in points])


@attrs.frozen(eq=False)
class Client:
    """Examples x [n, 5] and their classes, int32 [n]."""

    x: np.ndarray
    label: np.ndarray

    def batches(self, batch_size=None, epochs=1, dtype=np.float64):
        """The client's batches in the order of its examples, epoch by epoch."""
        size = batch_size or max(1, len(self.label))
        slices = (self.x.astype(dtype), self.label)
        dataset = tf.data.Dataset.from_tensor_slices(slices)
        return dataset.batch(size).repeat(epochs)

    def local_sgd(self, vector, rate, batch_size, epochs, step_gradient):
        """Weights after SGD; `step_gradient(weights, x, labels)` is what steps follow."""
        y = np.array(vector, np.float64)
        for first in list(range(0, len(self.label), batch_size)) * epochs:
            rows = slice(first, first + batch_size)
            y = y - rate * step_gradient(y, self.x[rows], self.label[rows])
        return y


def clients(sizes=(6, 6, 6, 6), seed=0) -> list[Client]:
    """Clients whose classes come from linear models of their own."""
    return [
        Client(client.x, np.digitize(client.y, [-0.5, 0.5]).astype(np.int32))
        for client in problems.clients(sizes, seed)
    ]
