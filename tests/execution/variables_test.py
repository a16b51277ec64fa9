"""Leaves without their variables compute the same."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.leaves_with_variables import (
    assert_lifted_to_the_same,
    leaf_of,
    ops_of,
    values_of,
)
from tff_algos.execution import graph_contents, variables

NUMBERS = tff.SequenceType(np.float32)


def test_a_read_gives_what_the_assignment_before_it_gave():
    @tff.tensorflow.computation(np.float32)
    def compute(x):
        v = tf.Variable(3.0)

        @tf.function
        def run():
            first = v + x
            v.assign(10.0 * x)
            second = v + x
            v.assign_add(1.0)
            v.assign_sub(x)
            return first, second, v.read_value()

        return run()

    lifted = assert_lifted_to_the_same(compute, np.float32(2.0))
    assert values_of(lifted, tf.constant(2.0)) == [5.0, 22.0, 19.0]


def test_branches_assign_in_the_branch_that_is_taken():
    @tff.tensorflow.computation(np.float32)
    def compute(x):
        v, other = tf.Variable(1.0), tf.Variable(5.0)

        @tf.function
        def run():
            if x > 0.0:
                v.assign(x)
            else:
                other.assign(v + x)
            chosen = tf.switch_case(
                tf.cast(tf.abs(x), tf.int32),
                [lambda: v + 1.0, lambda: other.assign_add(2.0), lambda: v + other],
            )
            return v + 0.0, other + 0.0, chosen

        return run()

    for x in (-2.0, -1.0, 0.0, 1.0, 2.0):
        assert_lifted_to_the_same(compute, np.float32(x))


def test_loops_carry_variables():
    @tff.tensorflow.computation(np.float32)
    def compute(x):
        total, step = tf.Variable(0.0), tf.Variable(2.0)

        @tf.function
        def run():
            for index in tf.range(5):
                total.assign_add(step * tf.cast(index, tf.float32))
                if total > x:
                    step.assign(step / 2.0)
            return total + 0.0, step + 0.0

        return run()

    assert_lifted_to_the_same(compute, np.float32(3.0))


def test_a_reduction_keeps_what_it_assigns_to_in_its_state():
    @tff.tensorflow.computation(NUMBERS)
    def compute(numbers):
        total, factor = tf.Variable(0.0), tf.Variable(3.0)

        @tf.function
        def run():
            def step(count, number):
                total.assign_add(factor * number)
                return count + 1

            count = numbers.reduce(0, step)
            return count, total + 0.0

        return run()

    leaf = leaf_of(compute)
    lifted = variables.lift(leaf)
    (reduction,) = [n for n in lifted.graph_def.node if n.op == "ReduceDataset"]
    states = [tf.as_dtype(t) for t in reduction.attr["Tstate"].list.type]
    assert states == [tf.int32, tf.float32]
    assert len(reduction.attr["Targuments"].list.type) == 1

    def numbers():
        dataset = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 4.0])
        return tf.data.experimental.to_variant(dataset)

    assert values_of(lifted, numbers()) == [3, 21.0]
    assert values_of(lifted.with_loops, numbers()) == [3, 21.0]


def test_initial_values_that_nothing_reads_are_not_computed():
    @tff.tensorflow.computation(np.float32)
    def compute(x):
        v = tf.Variable(lambda: tf.random.normal([100, 100], seed=3))

        @tf.function
        def run():
            v.assign(tf.fill([100, 100], x))
            return tf.reduce_sum(v)

        return run()

    lifted = assert_lifted_to_the_same(compute, np.float32(2.0))
    assert not graph_contents.takes_turns(lifted.graph_def)
    assert "RandomStandardNormal" not in ops_of(lifted)


def test_assertions_still_fail():
    @tff.tensorflow.computation(np.float32)
    def compute(x):
        v = tf.Variable(1.0)

        @tf.function
        def run():
            v.assign(x)
            tf.debugging.assert_less(v.read_value(), 5.0, message="too large")
            return v + 1.0

        return run()

    lifted = assert_lifted_to_the_same(compute, np.float32(2.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        values_of(lifted, tf.constant(7.0))


def test_a_leaf_without_variables_is_the_same_object():
    @tff.tensorflow.computation(np.float32)
    def compute(x):
        return x + 1.0

    leaf = leaf_of(compute)
    assert variables.lift(leaf) is leaf


def test_a_variable_that_cannot_be_followed_is_named_and_stays():
    @tff.tensorflow.computation(NUMBERS)
    def compute(numbers):
        v = tf.Variable(2.0)

        @tf.function
        def run():
            return numbers.map(lambda x: x * v).reduce(0.0, lambda a, b: a + b)

        return run()

    leaf = variables.lift(leaf_of(compute))
    assert leaf.obstacle == "MapDataset of a variable"
    assert "VarHandleOp" in ops_of(leaf)
    dataset = tf.data.Dataset.from_tensor_slices([1.0, 2.0])
    assert values_of(leaf, tf.data.experimental.to_variant(dataset)) == [6.0]
