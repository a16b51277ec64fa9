"""Passes over a client's examples: their batches, one after the other and again."""

import numpy as np
import tensorflow as tf

from tff_algos.client_works import passes


def numbers(count):
    return tf.data.Dataset.range(count).batch(2)


def test_a_passs_last_batch_may_be_smaller():
    found = passes.read(numbers(5), num_passes=2)
    sizes = found.num_examples, found.batch_size, found.batches_per_pass
    assert [int(size) for size in sizes] == [5, 2, 3]
    assert found.num_batches == 6
    batches = [found.batch(tf.constant(k)).numpy().tolist() for k in range(8)]
    assert batches[:3] == batches[3:6] == [[0, 1], [2, 3], [4]]
    # After the last comes the first again.
    assert batches[6:] == batches[:2]


def test_every_pass_is_shuffled_anew_where_the_data_set_is():
    shuffled = tf.data.Dataset.range(50).shuffle(50, seed=1).batch(50)
    found = passes.read(shuffled, num_passes=2)
    first, second = (found.batch(tf.constant(k)).numpy() for k in range(2))
    assert first.tolist() != second.tolist()
    np.testing.assert_array_equal(np.sort(first), np.sort(second))


def test_passes_in_the_data_are_split():
    joined = numbers(5).concatenate(numbers(5).map(lambda x: x + 10))
    found = passes.split(joined, num_passes=2)
    batches = [found.batch(tf.constant(k)).numpy().tolist() for k in range(6)]
    assert batches == [[0, 1], [2, 3], [4], [10, 11], [12, 13], [14]]
    assert found.num_examples == 5 and found.num_batches == 6
    assert passes.split(numbers(0), num_passes=2).num_batches == 0


def test_batches_keep_the_structure_of_the_data_set():
    pairs = tf.data.Dataset.from_tensor_slices({"x": np.eye(3), "y": np.arange(3)})
    batch = passes.read(pairs.batch(2)).batch(tf.constant(1))
    np.testing.assert_array_equal(batch["x"], [[0, 0, 1]])
    np.testing.assert_array_equal(batch["y"], [2])


def test_without_examples_there_are_no_batches():
    found = passes.read(numbers(0), num_passes=3)
    assert found.num_examples == 0 and found.num_batches == 0
