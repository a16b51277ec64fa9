"""Clients' batches in memory: what is kept, and within which budget."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from tff_algos.execution import client_batches

RANGE = tf.data.Dataset.range(6)
SHUFFLED = RANGE.shuffle(6)


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (RANGE.batch(2).repeat(3).take(2).skip(1).prefetch(1), True),
        (tf.data.Dataset.from_tensor_slices([1, 2]).map(lambda x: x + 1), True),
        (tf.data.Dataset.zip(RANGE, RANGE).filter(lambda a, b: a > b), True),
        (RANGE.cache().shard(2, 0).take_while(lambda x: x < 3), True),
        (RANGE.flat_map(lambda x: SHUFFLED.shard(6, x)), False),
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
    # A dataset that comes and goes leaves nothing behind.
    waiting = len(weakref.finalize._registry)
    for _ in range(3):
        cache.read(first, specs)
        cache.read(second, specs)
    assert len(weakref.finalize._registry) == waiting
    del second
    assert cache.num_bytes == 0


def test_a_cache_does_not_outlive_its_owner():
    cache, dataset = client_batches.BatchCache(max_bytes=100), tf.data.Dataset.range(6)
    cache.read(dataset, (tf.TensorSpec([], tf.int64),))
    kept = weakref.ref(cache)
    del cache
    gc.collect()
    assert kept() is None
    del dataset


def test_data_sets_of_a_thousand_parts_are_looked_through():
    parts = [tf.data.Dataset.range(2) for _ in range(1200)]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.concatenate(part)
    assert client_batches.is_repeatable(whole)
    assert not client_batches.may_be_spent(whole)
    shuffled = whole.shuffle(2)
    assert not client_batches.is_repeatable(shuffled)
