"""Reductions of datasets as loops give what TFF's own runtime gives."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import equivalence
from tff_algos import execution
from tff_algos.execution import reduction_loops

NUMBERS = tff.SequenceType(np.int64)
CLIENT_NUMBERS = tff.FederatedType(NUMBERS, tff.CLIENTS)

same = equivalence.assert_same_in_both


def ranges(*sizes):
    return [tf.data.Dataset.range(size) for size in sizes]


def test_loops_over_data_give_what_tffs_runtime_gives():
    @tff.tensorflow.computation(NUMBERS)
    @tf.function
    def work(data):
        total = tf.constant(0, tf.int64)
        for number in data:
            if number > 5:
                break
            total += number
        iterator = iter(data.batch(2))
        first = iterator.get_next_as_optional()
        return total, first.has_value(), data.cardinality()

    @tff.federated_computation(CLIENT_NUMBERS)
    def at_clients(data):
        return tff.federated_map(work, data)

    same(work, tf.data.Dataset.range(9))
    same(at_clients, ranges(3, 0, 9))


def test_reductions_may_be_in_reductions_and_in_functions():
    @tff.tensorflow.computation(NUMBERS)
    def work(data):
        @tf.function
        def inner(batch):
            rows = tf.data.Dataset.from_tensor_slices(batch)
            return rows.reduce(tf.constant(0, tf.int64), lambda a, b: a * 2 + b)

        return data.batch(3).reduce(
            (tf.constant(1, tf.int64), tf.constant(True)),
            lambda state, batch: (state[0] + inner(batch), state[1]),
        )

    same(work, tf.data.Dataset.range(8))
    same(work, tf.data.Dataset.range(0))


def test_a_reductions_state_may_grow():
    @tff.tensorflow.computation(NUMBERS)
    def collect(data):
        return data.reduce(
            tf.zeros([0], tf.int64), lambda seen, x: tf.concat([seen, [x]], 0)
        )

    same(collect, tf.data.Dataset.range(4))


def test_for_loops_over_data_sets_keep_variables_and_state():
    @tff.tensorflow.computation(tff.SequenceType(tff.TensorType(np.float32, [None])))
    def sums(dataset):
        total = tf.Variable(1.0)

        @tf.function
        def loop(dataset):
            count, decayed = 0, 0.0
            for batch in dataset:
                total.assign_add(tf.reduce_sum(batch))
                count += 1
                decayed = 0.5 * decayed + tf.reduce_mean(batch)
            for batch in dataset.take(2):
                total.assign_add(0.5 * tf.reduce_sum(batch))
            for batch in dataset:
                if total > 30.0:
                    break
                total.assign_add(batch[0])
            return total.read_value(), count, decayed

        return loop(dataset)

    data = tf.data.Dataset.range(8).map(lambda x: tf.cast(x, tf.float32)).batch(3)
    total, count, _ = equivalence.assert_same_in_both(sums, data)
    assert count == 3 and total > 30


def test_for_loops_take_no_step_of_an_empty_data_set():
    @tff.tensorflow.computation(tff.SequenceType(np.int32))
    def count(dataset):
        steps = tf.Variable(0)

        @tf.function
        def loop(dataset):
            for _ in dataset:
                steps.assign_add(1)
            return steps.read_value()

        return loop(dataset)

    assert equivalence.assert_same_in_both(count, []) == 0


def test_an_element_of_a_variable_is_read_after_the_step_before_it():
    @tff.tensorflow.computation(tff.SequenceType(np.int32))
    def last(dataset):
        weights = tf.Variable(tf.eye(200))

        @tf.function
        def loop(dataset):
            # A slow step, so that an element fetched during it would be an old one.
            for total in dataset.map(lambda _: tf.reduce_sum(weights)):
                weights.assign(tf.matmul(weights, weights) + total / 200.0)
            return tf.reduce_sum(weights)

        return loop(dataset)

    data = list(range(4))
    found = {float(equivalence.assert_same_in_both(last, data)) for _ in range(5)}
    assert len(found) == 1


def test_a_loop_sees_what_was_written_before_it():
    @tff.tensorflow.computation(NUMBERS)
    def counted(data):
        table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)

        @tf.function
        def counts(data):
            for number in data:
                table.insert(number, table.lookup(number) + 1)
            total = tf.constant(0, tf.int64)
            for number in data:
                total += table.lookup(number)
            return total

        return counts(data)

    data = tf.data.Dataset.range(7).repeat(200)
    with execution.in_process_context():
        assert int(counted(data)) == 7 * 200 * 200


def test_an_element_of_a_table_is_read_after_the_step_before_it():
    @tff.tensorflow.computation(tff.SequenceType(np.int32))
    def doubled(dataset):
        table = tf.lookup.experimental.MutableHashTable(tf.int32, tf.int32, 1)

        @tf.function
        def loop(dataset):
            total = 0
            for value in dataset.map(lambda _: table.lookup(0)):
                table.insert(0, 2 * value)
                total += value
            return total

        return loop(dataset)

    assert equivalence.assert_same_in_both(doubled, [0] * 5) == 1 + 2 + 4 + 8 + 16


def test_every_loop_of_a_function_is_merged_with_its_scan():
    @tf.function
    def work(first, second, total):
        for number in first:
            total += number
        for number in second:
            total *= number
        return total

    data = tf.data.Dataset.range(1, 4)
    traced = work.get_concrete_function(data, data, tf.constant(0, tf.int64))
    graph_def = traced.graph.as_graph_def()
    assert [n.op for n in graph_def.node].count("ScanDataset") == 2
    reduction_loops.merge_scans(graph_def)
    ops = [node.op for node in graph_def.node]
    assert "ScanDataset" not in ops and ops.count("ReduceDataset") == 2

    @tff.tensorflow.computation(NUMBERS, NUMBERS, np.int64)
    def computation(first, second, total):
        return work(first, second, total)

    same(computation, data, data, 5)
