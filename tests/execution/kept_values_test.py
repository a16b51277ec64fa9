"""What clients keep for a later pass: in memory, or beyond a limit in a file."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import execution
from tff_algos.execution.kept_values import KeptValues

DTYPES = [tf.float32, tf.float64, tf.int32, tf.bool, tf.bfloat16, tf.complex64]


@pytest.mark.parametrize("max_bytes", [0, 50, 1 << 20])
def test_values_come_back_in_order_whatever_fits_memory(max_bytes):
    kept = KeptValues(3, max_bytes)
    rng = np.random.default_rng(0)
    clients = [
        (
            tf.constant(rng.normal(size=[4, 2])),
            tf.constant(number),
            tf.constant(f"client {number}"),
        )
        for number in range(7)
    ]
    for values in clients:
        kept.append(values)
    for index, column in enumerate(kept.columns):
        assert len(column) == 7
        for found, values in zip(column, clients, strict=True):
            assert found.dtype == values[index].dtype
            np.testing.assert_array_equal(found.numpy(), values[index].numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_survives_the_file(dtype):
    kept = KeptValues(1, 0)
    for tensor in (tf.cast([[1, 0, 3]], dtype), tf.zeros([0, 2], dtype)):
        kept.append([tensor])
        found = kept.columns[0][-1]
        assert found.dtype == dtype and found.shape == tensor.shape
        np.testing.assert_array_equal(found.numpy(), tensor.numpy())


def test_values_go_with_the_last_reference_and_wait_for_no_collector():
    first, second = tf.ones([4]), tf.zeros([4])
    alive = weakref.ref(first)
    gc.disable()
    try:
        kept = KeptValues(2, 1 << 20)
        kept.append([first, second])
        column = kept.columns[1]
        del first, kept
        assert alive() is None
        np.testing.assert_array_equal(column[0], second)
    finally:
        gc.enable()


@pytest.mark.parametrize("batch_clients", [False, True])
def test_a_computation_gives_the_same_with_its_values_in_a_file(batch_clients):
    @tff.tensorflow.computation((np.float32, [5]))
    def square(value):
        return value * value

    @tff.tensorflow.computation((np.float32, [5]), (np.float32, [5]))
    def divide(value, total):
        return value / total

    @tff.federated_computation(tff.FederatedType((np.float32, [5]), tff.CLIENTS))
    def shares(value):
        squared = tff.federated_map(square, value)
        total = tff.federated_broadcast(tff.federated_sum(squared))
        return tff.federated_map(divide, (squared, total))

    rng = np.random.default_rng(1)
    clients = [rng.normal(size=5).astype(np.float32) for _ in range(9)]
    expected = np.square(clients) / np.sum(np.square(clients), axis=0)
    for max_kept_bytes in (0, 1 << 20):
        with execution.in_process_context(
            batch_clients=batch_clients, max_kept_bytes=max_kept_bytes
        ):
            found = shares(clients)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
