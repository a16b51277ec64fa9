"""A task of a few points in the plane, for tests of what drives tasks."""

import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks.models import metrics
from tasks.task import Task

NUM_TRAIN_CLIENTS, NUM_HELDOUT_CLIENTS = 8, 5


@tf.function
def _logits(weights, x, training):
    del training
    kernel, bias = weights[0]
    return x @ kernel + bias


def model() -> tff.learning.models.FunctionalModel:
    """Softmax regression of 3 classes on 2 features."""
    classification = metrics.Classification()
    initial = (np.full((2, 3), 0.1, np.float32), np.zeros(3, np.float32))
    return tff.learning.models.FunctionalModel(
        initial_weights=(initial, ()),
        predict_on_batch_fn=_logits,
        loss_fn=classification.loss,
        metrics_fns=classification.metrics_fns(),
        input_spec=(
            tf.TensorSpec([None, 2], np.float32),
            tf.TensorSpec([None], np.int32),
        ),
    )


def _examples(client_id, split):
    number = int(client_id)
    rng = np.random.default_rng([number, split == "test"])
    x = rng.normal(size=(6 + number % 4, 2)).astype(np.float32)
    # Every client turns the plane by an angle of its own.
    angle = np.arctan2(x[:, 1], x[:, 0]) + 0.3 * number
    y = (np.floor(angle * 3 / (2 * np.pi)) % 3).astype(np.int32)
    return x, y


@functools.lru_cache(maxsize=1)
def make() -> Task:
    """Returns the task: 8 clients that train, 5 held out."""
    everyone = [str(n) for n in range(NUM_TRAIN_CLIENTS + NUM_HELDOUT_CLIENTS)]
    return Task(
        name="tiny",
        data_source="generated",
        train_client_ids=tuple(everyone[:NUM_TRAIN_CLIENTS]),
        eval_client_ids=tuple(everyone[NUM_TRAIN_CLIENTS:]),
        examples=_examples,
        model=model(),
    )
