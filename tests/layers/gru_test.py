"""A GRU layer, step by step in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tff_algos.layers import gru

TIME, BATCH, INPUTS, UNITS = 6, 3, 2, 4


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def in_numpy(x, kernel, recurrent_kernel, bias):
    state, outputs = np.zeros((BATCH, UNITS)), []
    for inputs in x:
        own = np.split(inputs @ kernel + bias[0], 3, axis=1)
        past = np.split(state @ recurrent_kernel + bias[1], 3, axis=1)
        update, reset = sigmoid(own[0] + past[0]), sigmoid(own[1] + past[1])
        candidate = np.tanh(own[2] + reset * past[2])
        state = update * state + (1 - update) * candidate
        outputs.append(state)
    return np.stack(outputs)


@pytest.mark.parametrize("gradient", ["fused", "autodiff"])
def test_outputs_are_those_of_the_equations(gradient):
    rng = np.random.default_rng(0)
    width = 3 * UNITS
    shapes = ((TIME, BATCH, INPUTS), (INPUTS, width), (UNITS, width), (2, width))
    arguments = [rng.normal(size=shape) for shape in shapes]
    found = gru.gru(*map(tf.constant, arguments), gradient)
    np.testing.assert_allclose(found, in_numpy(*arguments), rtol=1e-10, atol=1e-12)


def test_an_update_gate_that_is_shut_keeps_the_state_at_zero():
    bias = np.zeros((2, 3 * UNITS))
    bias[0, :UNITS] = 100.0
    found = gru.gru(
        tf.ones([TIME, BATCH, INPUTS], tf.float64),
        tf.ones([INPUTS, 3 * UNITS], tf.float64),
        tf.ones([UNITS, 3 * UNITS], tf.float64),
        tf.constant(bias),
    )
    np.testing.assert_allclose(found, np.zeros((TIME, BATCH, UNITS)), atol=1e-12)
