"""Ops on variables compute the same on the variables' values."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.leaves_with_variables import (
    assert_lifted_to_the_same,
    leaf_of,
    values_of,
)
from tff_algos.execution import variables


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
