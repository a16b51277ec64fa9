"""An LSTM layer, step by step in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tff_algos.layers import lstm

TIME, BATCH, INPUTS, UNITS = 6, 3, 2, 4


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def in_numpy(x, kernel, recurrent_kernel, bias):
    output = cell = np.zeros((BATCH, UNITS))
    outputs = []
    for inputs in x:
        gates = inputs @ kernel + output @ recurrent_kernel + bias
        enter, forget, candidate, leave = np.split(gates, 4, axis=1)
        cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(candidate)
        output = sigmoid(leave) * np.tanh(cell)
        outputs.append(output)
    return np.stack(outputs)


@pytest.mark.parametrize("gradient", ["fused", "autodiff"])
def test_outputs_are_those_of_the_equations(gradient):
    rng = np.random.default_rng(0)
    width = 4 * UNITS
    shapes = ((TIME, BATCH, INPUTS), (INPUTS, width), (UNITS, width), (width,))
    arguments = [rng.normal(size=shape) for shape in shapes]
    found = lstm.lstm(*map(tf.constant, arguments), gradient)
    np.testing.assert_allclose(found, in_numpy(*arguments), rtol=1e-10, atol=1e-12)


def test_an_output_gate_that_is_shut_gives_nothing():
    bias = np.zeros(4 * UNITS)
    bias[3 * UNITS :] = -100.0
    found = lstm.lstm(
        tf.ones([TIME, BATCH, INPUTS], tf.float64),
        tf.zeros([INPUTS, 4 * UNITS], tf.float64),
        tf.zeros([UNITS, 4 * UNITS], tf.float64),
        tf.constant(bias),
    )
    np.testing.assert_allclose(found, np.zeros((TIME, BATCH, UNITS)), atol=1e-12)
