"""Leaves of TensorFlow are kept, and others are refused by name."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import equivalence
from tff_algos import execution

CLIENT_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)


def test_a_leaf_of_another_framework_is_refused_by_name():
    jax = pytest.importorskip("jax")

    @tff.jax.computation(np.float32)
    def jax_add(x):
        return jax.numpy.add(x, 1)

    @tff.federated_computation(CLIENT_FLOATS)
    def at_clients(x):
        return tff.federated_map(jax_add, x)

    for computation, argument in ((jax_add, 1.0), (at_clients, [1.0])):
        with pytest.raises(execution.UnsupportedComputationError, match="xla"):
            equivalence.call(equivalence.in_process(), computation, argument)


def test_work_may_wait_for_its_own_arguments():
    @tff.tensorflow.computation(np.float32, np.float32)
    def pulled_back(x, gradient):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.square(x)
        return tape.gradient(y, x, output_gradients=gradient)

    @tff.tensorflow.computation(np.float32)
    def waiting(x):
        with tf.control_dependencies([x]):
            return tf.constant(5.0)

    @tff.federated_computation(CLIENT_FLOATS)
    def at_clients(x):
        return tff.federated_map(waiting, x)

    equivalence.assert_same_in_both(pulled_back, 2.0, 3.0)
    equivalence.assert_same_in_both(waiting, 2.0)
    for num_clients in (1, 6):
        equivalence.assert_same_in_both(at_clients, [1.0] * num_clients)


def test_variables_of_tensorflow_1_are_refused_by_name():
    @tff.tensorflow.computation
    def old():
        variable = tf.compat.v1.get_variable("v", [], use_resource=False)
        return variable + 1.0

    with pytest.raises(execution.UnsupportedComputationError, match="VariableV2 'v'"):
        equivalence.call(equivalence.in_process(), old)
