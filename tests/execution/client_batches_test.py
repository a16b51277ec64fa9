"""Clients' batches in memory, and the steps that chunks of clients take."""

import collections

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tff_algos.execution import batched_passes, client_batches


def _client(sizes, start):
    batches = tuple(
        (np.arange(start, start + size, dtype=np.float32),) for size in sizes
    )
    shapes = tuple(((size,),) for size in sizes)
    return client_batches.ClientBatches(batches, shapes, 4 * sum(sizes))


@hypothesis.given(
    st.lists(st.lists(st.integers(1, 3), max_size=4), min_size=1, max_size=5)
)
def test_a_schedule_takes_every_batch_once_in_order_and_pads_nothing(sizes):
    clients = [_client(each, 100 * index) for index, each in enumerate(sizes)]
    seen = collections.defaultdict(list)
    for step in batched_passes.schedule(clients):
        members = range(len(clients)) if step.clients is None else step.clients
        (stacked,) = step.batch
        assert len(stacked) == len(members)
        for member, batch in zip(members, stacked, strict=True):
            seen[int(member)].append(batch)
    for index, client in enumerate(clients):
        expected = [part for (part,) in client.batches]
        assert len(seen[index]) == len(expected)
        for found, batch in zip(seen[index], expected, strict=True):
            np.testing.assert_array_equal(found, batch)


def test_clients_with_the_same_shapes_take_their_steps_together():
    clients = [_client([3, 3, 1], 0), _client([3, 3, 2], 10), _client([3, 3, 1], 20)]
    steps = list(batched_passes.schedule(clients))
    members = [
        None if step.clients is None else step.clients.tolist() for step in steps
    ]
    assert members == [None, None, [0, 2], [1]]


RANGE = tf.data.Dataset.range(6)


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (RANGE.batch(2).repeat(3).take(2).skip(1).prefetch(1), True),
        (tf.data.Dataset.from_tensor_slices([1, 2]).map(lambda x: x + 1), True),
        (tf.data.Dataset.zip(RANGE, RANGE).filter(lambda a, b: a > b), True),
        (RANGE.shuffle(6, seed=1), False),
        (RANGE.shuffle(6, seed=1, reshuffle_each_iteration=False).batch(2), False),
        (RANGE.map(lambda x: tf.random.uniform([]) + tf.cast(x, tf.float32)), False),
        (tf.data.Dataset.random(seed=1).take(3), False),
    ],
)
def test_only_what_repeats_itself_is_kept(dataset, expected):
    assert client_batches.is_repeatable(dataset) is expected


FEATURES = {
    "x": np.arange(14, dtype=np.float32).reshape(7, 2),
    "a": np.arange(7) % 2,
}


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("epochs", [0, 1, 3])
@pytest.mark.parametrize("size", [1, 3, 7, 10])
def test_arrays_in_memory_give_the_batches_of_their_data_set(
    size, epochs, drop_remainder
):
    slices = tf.data.Dataset.from_tensor_slices(FEATURES)
    dataset = slices.batch(size, drop_remainder=drop_remainder).repeat(epochs)
    _check_batches(dataset)


def test_tensors_in_memory_are_the_element_of_their_data_set():
    _check_batches(tf.data.Dataset.from_tensors(FEATURES))


def _check_batches(dataset):
    found = client_batches.BatchCache(max_bytes=0).read(dataset, ())
    expected = [tf.nest.flatten(batch) for batch in dataset]
    assert len(found.batches) == len(expected)
    for batch, shapes, parts in zip(found.batches, found.shapes, expected, strict=True):
        assert shapes == tuple(tuple(part.shape) for part in parts)
        for one, other in zip(batch, parts, strict=True):
            np.testing.assert_array_equal(one, other)


def test_batches_are_kept_within_the_budget_and_while_their_data_set_lives():
    specs = (tf.TensorSpec([], tf.int64),)
    cache = client_batches.BatchCache(max_bytes=100)
    first, second = tf.data.Dataset.range(6), tf.data.Dataset.range(7)
    batches = cache.read(first, specs)
    assert [int(part) for (part,) in batches.batches] == list(range(6))
    assert cache.read(first, specs) is batches
    cache.read(second, specs)
    assert cache.get(first) is None
    assert cache.get(second).num_bytes == 56
    del second
    assert cache.num_bytes == 0
