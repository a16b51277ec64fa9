"""Leaves without their variables compute the same."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.execution import graph_rewrites, leaves, tracing, variables

FLOAT = tf.TensorSpec([], tf.float32)
NUMBERS = tff.SequenceType(np.float32)


def leaf_of(computation) -> leaves.Leaf:
    return leaves.from_block(computation.to_building_block(), "leaf")


def ops_of(leaf: leaves.Leaf) -> set[str]:
    return {node.op for node in graph_rewrites.all_nodes(leaf.graph_def)}


def values_of(leaf: leaves.Leaf, *arguments) -> list:
    specs = [tf.TensorSpec.from_tensor(each) for each in arguments]
    given = [name is not None for name in leaf.inputs]

    def run(*tensors):
        tensors = [t if used else None for t, used in zip(tensors, given, strict=True)]
        return leaf(tensors)

    outputs = tracing.trace(run, specs)(*arguments)
    return [output.numpy() for output in outputs]


def assert_lifted_to_the_same(computation, *arguments) -> leaves.Leaf:
    """Asserts that a leaf computes the same bits without variables."""
    leaf = leaf_of(computation)
    lifted = variables.lift(leaf)
    assert lifted.obstacle == ""
    assert "VarHandleOp" in ops_of(leaf)
    assert not [op for op in ops_of(lifted) if "Variable" in op or "VarHandle" in op]
    tensors = list(map(tf.constant, arguments))
    for found, expected in zip(
        values_of(lifted, *tensors), values_of(leaf, *tensors), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    return lifted


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


def test_rows_of_variables_are_read_and_changed():
    @tff.tensorflow.computation((np.int32, [2]))
    def compute(rows):
        v = tf.Variable(np.arange(12.0).reshape(4, 3))

        @tf.function
        def run():
            taken = tf.gather(v, rows)
            v.scatter_add(tf.IndexedSlices(taken, rows))
            v.scatter_sub(tf.IndexedSlices(tf.ones([2, 3], tf.float64), rows))
            v.scatter_update(tf.IndexedSlices(tf.zeros([1, 3], tf.float64), [0]))
            return taken, v + 0.0, tf.gather_nd(v, [[1, 2], [3, 0]])

        return run()

    assert_lifted_to_the_same(compute, np.array([1, 3], np.int32))


OPTIMIZERS = {
    "gradient_descent": lambda: tf.keras.optimizers.legacy.SGD(0.1),
    "momentum": lambda: tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9),
    "nesterov": lambda: tf.keras.optimizers.legacy.SGD(0.1, 0.9, nesterov=True),
    "adam": lambda: tf.keras.optimizers.legacy.Adam(0.1),
    "adagrad": lambda: tf.keras.optimizers.legacy.Adagrad(0.1),
    "rms_prop": lambda: tf.keras.optimizers.legacy.RMSprop(0.1, momentum=0.5),
    "momentum_of_tf": lambda: tf.compat.v1.train.MomentumOptimizer(0.1, 0.9),
    "nesterov_of_tf": lambda: tf.compat.v1.train.MomentumOptimizer(
        0.1, 0.9, use_nesterov=True
    ),
    "new_adam": lambda: tf.keras.optimizers.Adam(0.1),
    "new_sgd": lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_take_the_same_steps(name):
    @tff.tensorflow.computation((np.float64, [3]))
    def compute(x):
        v = tf.Variable(np.array([1.0, -2.0, 3.0]))
        optimizer = OPTIMIZERS[name]()
        if hasattr(optimizer, "build"):
            optimizer.build([v])

        @tf.function
        def run():
            for _ in range(3):
                optimizer.apply_gradients([(tf.square(v) * x, v)])
            return v + 0.0

        return run()

    leaf = leaf_of(compute)
    lifted = variables.lift(leaf)
    assert lifted.obstacle == ""
    x = tf.constant(np.array([0.1, 0.2, -0.3]))
    (found,), (expected,) = values_of(lifted, x), values_of(leaf, x)
    assert np.abs(expected - [1.0, -2.0, 3.0]).min() > 0.01
    np.testing.assert_allclose(found, expected, rtol=1e-6)


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
    assert not graph_rewrites.takes_turns(lifted.graph_def)
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
