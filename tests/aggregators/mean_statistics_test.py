"""Batch normalization's moving statistics travel, and are averaged by examples."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import batch_statistics
from tests.testing.batch_statistics import (
    BATCH_SIZE,
    RATE,
    SIZES,
    N,
    datasets,
    examples,
    model,
    statistics_after,
)
from tests.testing.local_steps import told
from tests.testing.numbered_clients import numbered
from tests.testing.speed import some_fast

SGD = tff.learning.optimizers.build_sgdm
REMEMBERING = ("scaffold", "feddyn", "moon")
NUMBERED = ("afl", "mifa", "gradma")


def with_memory(process):
    """Every client's data with its number and an empty row."""
    memory = tff_algos.ClientMemory.of_process(process, N)
    return [
        collections.OrderedDict(data, memory=memory.dataset(client))
        for client, data in enumerate(numbered(datasets()))
    ]


def expected():
    """The mean over clients, by numbers of examples."""
    each = [statistics_after(client, size) for client, size in enumerate(SIZES)]
    return [np.average(of_all, axis=0, weights=SIZES) for of_all in zip(*each)]


BUILDERS = {
    "fedavg": lambda: tff_algos.build_fed_avg(model(), SGD(RATE)),
    "uniform": lambda: tff_algos.build_fed_avg(
        model(), SGD(RATE), client_weighting=tff.learning.ClientWeighting.UNIFORM
    ),
    "fedsgd": lambda: tff_algos.build_fed_sgd(model(), SGD(RATE)),
    "mimelite": lambda: tff_algos.build_mime_lite(model(), SGD(RATE)),
    "uga": lambda: tff_algos.build_unbiased_gradient_aggregation(
        model(), SGD(RATE), client_learning_rate=RATE
    ),
    "qfedavg": lambda: tff_algos.build_q_fed_avg(
        model(), SGD(RATE), q=1.0, lipschitz=1e9
    ),
    "fedmgda_plus": lambda: tff_algos.build_fed_mgda_plus(model(), SGD(RATE)),
    "afl": lambda: tff_algos.build_agnostic_federated_learning(
        model(),
        SGD(RATE),
        num_clients=N,
        mixture_learning_rate=0.1,
        returned_model="last",
    ),
    "scaffold": lambda: tff_algos.build_scaffold(
        model(), client_learning_rate=RATE, num_clients=N
    ),
    "feddyn": lambda: tff_algos.build_fed_dyn(
        model(), SGD(RATE), dynamic_regularization=0.1, num_clients=N
    ),
    "mifa": lambda: tff_algos.build_mifa(model(), SGD(RATE), num_clients=N),
    "gradma": lambda: tff_algos.build_gradma(model(), SGD(RATE), num_clients=N),
    "moon": lambda: tff_algos.build_moon(model(), SGD(RATE), contrastive_strength=1.0),
    "fedmlb": lambda: tff_algos.build_fed_mlb(model(), SGD(RATE)),
}
# One of each kind of client work, of numbered updates and of remembering clients.
FAST = ("fedavg", "uga", "gradma")


@functools.cache
def process(name):
    return BUILDERS[name]()


def data_for(name):
    if name in REMEMBERING:
        return with_memory(process(name))
    return numbered(datasets()) if name in NUMBERED else datasets()


def statistics_of(name, state):
    weights = process(name).get_model_weights(state)
    return [np.asarray(tensor) for tensor in weights.non_trainable]


@pytest.mark.parametrize(
    "name",
    some_fast(BUILDERS, FAST),
)
def test_the_server_has_the_mean_of_its_clients_statistics(name):
    output = process(name).next(process(name).initialize(), data_for(name))
    found = statistics_of(name, output.state)
    for tensor, wanted, initial in zip(
        found, expected(), model().initial_weights[1], strict=True
    ):
        np.testing.assert_allclose(tensor, wanted, rtol=1e-5, atol=1e-6)
        assert np.max(np.abs(tensor - initial)) > 1e-3


def test_statistics_go_on_from_the_servers():
    once = process("fedavg").next(process("fedavg").initialize(), datasets())
    twice = process("fedavg").next(once.state, datasets())
    # Moving means go a tenth of what is left of the way with every batch.
    for first, second in zip(
        statistics_of("fedavg", once.state),
        statistics_of("fedavg", twice.state),
        strict=True,
    ):
        assert np.max(np.abs(second - first)) > 1e-4


def test_a_broken_clients_statistics_do_not_count():
    x, y = examples(7, 8)
    broken = tf.data.Dataset.from_tensor_slices((x * np.nan, y)).batch(BATCH_SIZE)
    output = process("fedavg").next(
        process("fedavg").initialize(), [*datasets(), broken]
    )
    for tensor, wanted in zip(
        statistics_of("fedavg", output.state), expected(), strict=True
    ):
        np.testing.assert_allclose(tensor, wanted, rtol=1e-5, atol=1e-6)


def test_a_round_of_nobody_leaves_statistics_alone():
    x, y = examples(7, 8)
    broken = tf.data.Dataset.from_tensor_slices((x * np.nan, y)).batch(BATCH_SIZE)
    output = process("fedavg").next(process("fedavg").initialize(), [broken])
    assert output.metrics["finalizer"]["num_rejected_rounds"] == 1
    for tensor, initial in zip(
        statistics_of("fedavg", output.state),
        model().initial_weights[1],
        strict=True,
    ):
        np.testing.assert_array_equal(tensor, initial)


def test_statistics_are_in_no_update_norm():
    """With weights that stay as they are the update is nothing, however they move."""
    output = process("fedavg").next(process("fedavg").initialize(), datasets())
    assert output.metrics["finalizer"]["update_norm"] < 1e-9


def test_statistics_of_batch_normalization_weigh_by_the_examples_told():
    process = tff_algos.build_fed_avg(
        batch_statistics.model(),
        SGD(batch_statistics.RATE),
        client_weighting=tff.learning.ClientWeighting.UNIFORM,
        with_num_examples=True,
    )
    numbers = (3, 1, 7)
    output = process.next(
        process.initialize(), told(batch_statistics.datasets(), numbers)
    )
    each = [
        batch_statistics.statistics_after(*c) for c in enumerate(batch_statistics.SIZES)
    ]
    expected = [np.average(t, axis=0, weights=numbers) for t in zip(*each, strict=True)]
    found = process.get_model_weights(output.state).non_trainable
    for tensor, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(tensor, wanted, rtol=1e-5, atol=1e-6)


def test_values_of_other_parts_are_refused():
    factory = tff_algos.aggregators.StatisticsFactory()
    of_two = tff.to_type([("update", np.float32), ("num_examples", np.float32)])
    for value_type in (tff.TensorType(np.float32), of_two):
        with pytest.raises(TypeError, match="value_type <update=..., statistics=...,"):
            factory.create(value_type, tff.TensorType(np.float32))
