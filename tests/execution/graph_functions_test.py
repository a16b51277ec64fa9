"""Fragments of a plan as functions: their values."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.leaves import (
    CLIENT_FLOATS,
    digits,
    mean_of_doubles,
    passes_of,
    steps_of,
)
from tff_algos.execution import graph_functions


@tff.tensorflow.computation(np.float32, np.float32)
def times(x, y):
    return x * y


@tff.federated_computation(CLIENT_FLOATS, tff.FederatedType(np.float32, tff.SERVER))
def sum_of_products(x, y):
    return tff.federated_sum(tff.federated_map(times, (x, tff.federated_broadcast(y))))


@pytest.mark.parametrize("device", [None, "/device:CPU:0"])
def test_a_fragment_gives_a_tensor_for_each_of_its_outputs(device):
    (client_pass,) = passes_of(sum_of_products)
    run = graph_functions.build(client_pass.fragment, device)
    outputs = run(tf.constant(3.0), tf.constant(5.0))
    assert [float(output) for output in outputs] == [15.0]


def test_a_server_stage_is_a_function_too():
    _, _, stage = steps_of(mean_of_doubles)
    (mean,) = graph_functions.build(stage.fragment)(tf.constant(6.0), tf.constant(4.0))
    assert float(mean) == 1.5


def test_accumulators_take_a_clients_values():
    (client_pass,) = passes_of(digits)
    accumulate = graph_functions.build_accumulate(client_pass.aggregates)
    (total,) = accumulate(tf.constant(12.0), tf.constant(3.0))
    assert float(total) == 123.0
