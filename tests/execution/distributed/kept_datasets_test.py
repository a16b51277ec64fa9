"""Datasets that stay at workers are sent once, and again when they are missing."""

import gc

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import local_fleet
from tests.testing.plane_processes import points, process
from tff_algos import execution
from tff_algos.execution.distributed.kept_datasets import (
    Directory,
    Keep,
    Kept,
    Store,
    num_bytes,
)


def _dataset(seed=0, num_rows=200):
    return points(num_rows, seed).batch(10)


def test_a_dataset_is_sent_once_to_each_worker():
    directory, dataset = Directory(), _dataset()
    first, second = directory.pack(dataset, 0), directory.pack(dataset, 0)
    assert isinstance(first, Keep) and second == Kept(first.key)
    other = directory.pack(dataset, 1)
    assert isinstance(other, Keep) and other.key == first.key
    assert num_bytes([first]) > 200 * 3 * 4 and num_bytes([second, second]) == 16
    directory.forget(0, [first.key])
    assert isinstance(directory.pack(dataset, 0), Keep)
    directory.forget(1)
    assert isinstance(directory.pack(dataset, 1), Keep)


@pytest.mark.parametrize(
    "make",
    [
        lambda: _dataset(num_rows=2),  # Small.
        lambda: points(200, 0).shuffle(200).batch(10),  # Another one every time.
        lambda: tf.ones([1000]),
    ],
)
def test_what_changes_or_is_small_is_sent_every_time(make):
    directory, value = Directory(), make()
    for _ in range(2):
        assert not isinstance(directory.pack(value, 0), Keep | Kept)


def test_workers_are_told_once_what_nobody_uses():
    directory = Directory()
    datasets = [_dataset(0), _dataset(1)]
    keys = [directory.pack(each, 0).key for each in datasets]
    directory.pack(datasets[0], 1)
    assert directory.to_drop(0) == []
    del datasets[0]
    gc.collect()
    assert directory.to_drop(0) == directory.to_drop(1) == keys[:1]
    assert directory.to_drop(0) == []


def test_a_store_drops_the_least_recently_used_and_names_what_is_missing():
    directory, store = Directory(), Store(max_bytes=12_000)
    sent = [directory.pack(_dataset(k), 0) for k in range(3)]
    kept = [Kept(each.key) for each in sent]
    assert 4_000 < num_bytes(sent[:1]) < 6_000
    (opened,) = store.opened(sent[:1])
    store.opened(sent[1:2])
    assert store.opened(kept[:1])[0] is opened
    assert store.evict() == []
    store.opened(sent[2:])
    assert store.evict() == [sent[1].key]
    assert store.missing([*kept, np.float32(1)]) == [sent[1].key]
    assert store.missing([sent[1], kept[1]]) == []
    store.drop([sent[0].key, -1])
    assert store.missing(kept) == [sent[0].key, sent[1].key]


def test_rounds_end_whatever_a_worker_had_to_drop(monkeypatch):
    """A call may expect what was dropped, and send what the next one expects."""
    learning = process("two layers", "momentum")
    pool = [_dataset(k) for k in range(12)]
    fleet = local_fleet.LocalFleet(1, max_cached_bytes=24_000)
    submit = fleet.submit

    def submit_not_for_ever(num_units, run):
        assert fleet.num_calls < 100
        return submit(num_units, run)

    monkeypatch.setattr(fleet, "submit", submit_not_for_ever)
    with tff.framework.get_context_stack().install(
        local_fleet.context(fleet, batch_clients=False)
    ):
        state = learning.initialize()
        rng = np.random.default_rng(0)
        for _ in range(4):
            cohort = [pool[k] for k in rng.choice(12, 6, replace=False)]
            state = learning.next(state, cohort).state


@pytest.mark.parametrize(
    ("batch_clients", "max_cached_bytes"), [(True, 1 << 30), (False, 20_000)]
)
def test_rounds_of_the_same_clients_have_the_same_bits_and_send_less(
    batch_clients, max_cached_bytes
):
    learning = process("two layers", "momentum")
    cohort = [_dataset(k) for k in range(9)]
    runs, client_bytes = [], []
    fleet = local_fleet.LocalFleet(2, max_cached_bytes=max_cached_bytes)
    for context in (
        execution.InProcessContext(batch_clients=batch_clients),
        local_fleet.context(fleet, batch_clients=batch_clients),
    ):
        with tff.framework.get_context_stack().install(context):
            state = learning.initialize()
            for _ in range(4):
                state = learning.next(state, cohort).state
                traffic = getattr(context._resources.workers, "traffic", None)
                client_bytes += [traffic.client_bytes] if traffic else []
        runs.append([np.asarray(each) for each in tf.nest.flatten(state)])
    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, other)
    assert client_bytes[0] > 9 * 200 * 3 * 4
    if max_cached_bytes == 1 << 30:
        # One number each, where the round's share went to the same worker as before.
        assert client_bytes[-1] == 9 * 8
