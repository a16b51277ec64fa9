"""Rounds of K local steps as the runner makes them, and their NumPy counterparts."""

import collections
import functools

import attrs
import numpy as np
import tensorflow as tf

import tff_algos
from tasks.task import Task
from tests.testing import problems
from tests.testing.problems import f32
from tff_algos.experiments import catalog, cohorts

RATE, BATCH, STEPS = 0.1, 4, 3
SIZES = (2, 5, 11)
CLIENTS = problems.clients(sizes=SIZES)


@functools.cache
def task():
    return Task(
        name="linear",
        data_source="generated",
        train_client_ids=("0", "1", "2"),
        eval_client_ids=("0",),
        examples=lambda client_id, split: attrs.astuple(CLIENTS[int(client_id)]),
        model=problems.linear_model(),
    )


def stage_of(algo, **hparams):
    """The one stage of an algorithm with K steps, all clients in every round."""
    chosen = {
        "clients_per_round": 3,
        "client_steps_per_round": STEPS,
        "client_batch_size": BATCH,
        "client_learning_rate": RATE,
    }
    chosen = {name: v for name, v in (chosen | hparams).items() if v is not None}
    recipe = catalog.get(algo)
    (stage,) = recipe.stages(task(), recipe.resolve("linear", {}, chosen))
    return stage


def data_of(stage, round_num=1):
    """A round's data: what the process takes, and batches by field and client."""
    data = cohorts.cohort_datasets(stage, task(), seed=0, round_num=round_num)
    ids = cohorts.cohort_ids(stage, task(), seed=0, round_num=round_num)
    read = {}
    for client_id, own in zip(ids, data, strict=True):
        fields = own if isinstance(own, dict) else {"examples": own}
        read[int(client_id)] = {
            name: list(dataset.as_numpy_iterator()) for name, dataset in fields.items()
        }
    return data, read


def gradient(w, batch):
    return problems.Client(*batch).gradient(w)


def loss(w, batch):
    x, y = batch
    return np.mean((x @ w[:-1] + w[-1] - y) ** 2) / 2


def trained(w, batches):
    for batch in batches:
        w = w - f32(RATE) * gradient(w, batch)
    return w


def run(stage, data):
    output = stage.process.next(stage.process.initialize(), data)
    return problems.vector_of(stage.process, output.state)


def rows_after_a_round(stage):
    """What each client remembers after a round, and the batches as `data_of` reads."""
    memory = tff_algos.ClientMemory.of_process(stage.process, len(CLIENTS))
    data, read = data_of(stage)
    ids = cohorts.cohort_ids(stage, task(), seed=0, round_num=1)
    with_rows = cohorts.with_memory(data, [int(i) for i in ids], memory)
    output = stage.process.next(stage.process.initialize(), with_rows)
    memory.update(output.metrics["client_work"]["memory"])
    rows = [
        np.concatenate([np.ravel(t) for t in memory.row(k)])
        for k in range(len(CLIENTS))
    ]
    return rows, read


def assert_exact(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)


def told(datasets, numbers):
    return [
        collections.OrderedDict(
            examples=dataset,
            num_examples=tf.data.Dataset.from_tensors(np.int64(number)),
        )
        for dataset, number in zip(datasets, numbers, strict=True)
    ]
