"""What clients and server send each other is measured, tensor by tensor."""

import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.plane_processes import points, process
from tff_algos import aggregators, execution
from tff_algos.execution import Communication

AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)
AT_SERVER = tff.FederatedType(np.float32, tff.SERVER)
VECTOR = tff.TensorType(np.float64, [5])


@tff.tensorflow.computation(np.float32, np.float32)
def times(a, b):
    return a * b


def measure(computation, *args, **options):
    with (
        execution.in_process_context(**options),
        execution.measured_communication() as meter,
    ):
        computation(*args)
    return meter.total


# One by one, or vectorized.
@pytest.mark.parametrize("num_clients", [1, 3, 6])
def test_a_broadcast_goes_to_every_client_and_a_sum_takes_a_value_of_each(num_clients):
    @tff.federated_computation(AT_SERVER, AT_CLIENTS)
    def total(factor, values):
        own = tff.federated_map(times, (tff.federated_broadcast(factor), values))
        return tff.federated_sum(own)

    found = measure(total, 2.0, [1.0] * num_clients)
    assert found == Communication(bytes_down=4 * num_clients, bytes_up=4 * num_clients)


@pytest.mark.parametrize("num_clients", [2, 6])
def test_gathered_rows_count_as_sums_do(num_clients):
    gather = aggregators.build_gather_computation(VECTOR)
    rows = [np.full(5, k, np.float64) for k in range(num_clients)]
    assert measure(gather, rows) == Communication(0, 8 * 5 * num_clients)


@pytest.mark.parametrize("num_clients", [2, 6])
def test_rows_that_only_a_simulation_collects_are_not_sent(num_clients):
    gather = aggregators.build_gather_computation(VECTOR, is_sent=False)
    rows = [np.full(5, k, np.float64) for k in range(num_clients)]
    assert measure(gather, rows) == Communication()


def test_a_tensor_is_sent_once_even_if_two_aggregates_and_two_passes_use_it():
    @tff.federated_computation(AT_SERVER, AT_CLIENTS)
    def twice(factor, values):
        factor = tff.federated_broadcast(factor)
        own = tff.federated_map(times, (factor, values))
        low, high = tff.federated_min(own), tff.federated_max(own)
        again = tff.federated_map(times, (factor, own))
        # Needs the first pass's result: 4 bytes more to every client, and from it.
        scaled = tff.federated_map(times, (tff.federated_broadcast(high), again))
        return low, tff.federated_sum(scaled)

    found = measure(twice, 2.0, [1.0, 3.0, 5.0])
    assert found == Communication(bytes_down=3 * (4 + 4), bytes_up=3 * (4 + 4))


def test_what_clients_do_not_use_is_not_sent():
    @tff.tensorflow.computation(np.float32, VECTOR)
    def without_vector(value, vector):
        del vector
        return value + 1

    @tff.federated_computation(tff.FederatedType(VECTOR, tff.SERVER), AT_CLIENTS)
    def total(vector, values):
        own = (values, tff.federated_broadcast(vector))
        return tff.federated_sum(tff.federated_map(without_vector, own))

    assert measure(total, np.ones(5), [1.0, 2.0]) == Communication(0, 8)


def test_what_stays_on_clients_is_not_sent():
    @tff.federated_computation(AT_CLIENTS)
    def own(values):
        doubled = tff.federated_map(times, (values, values))
        return doubled, tff.federated_sum(values)

    assert measure(own, [1.0, 2.0]) == Communication(0, 8)


@pytest.mark.parametrize("batch_clients", [None, True, False])
def test_values_that_differ_in_size_are_measured_one_by_one(batch_clients):
    any_length = tff.TensorType(np.float32, [None])

    @tff.tensorflow.computation
    def zero():
        return np.float32(0)

    @tff.tensorflow.computation(np.float32, any_length)
    def add(total, values):
        return total + tf.reduce_sum(values)

    @tff.tensorflow.computation(np.float32, np.float32)
    def merge(a, b):
        return a + b

    @tff.tensorflow.computation(np.float32)
    def report(total):
        return total

    @tff.tensorflow.computation(any_length)
    def doubled(values):
        return 2 * values

    @tff.federated_computation(tff.FederatedType(any_length, tff.CLIENTS))
    def total(values):
        own = tff.federated_map(doubled, values)
        return tff.federated_aggregate(own, zero(), add, merge, report)

    lengths = [4, 4, 4, 4] if batch_clients else [1, 2, 3, 4]
    values = [np.ones(length, np.float32) for length in lengths]
    found = measure(total, values, batch_clients=batch_clients)
    assert found == Communication(0, 4 * sum(lengths))


def test_text_counts_by_its_length():
    gather = aggregators.build_gather_computation(tff.TensorType(np.str_))
    assert measure(gather, ["a", "four"]) == Communication(0, 5)


def test_meters_nest_and_add_up_and_are_of_their_thread():
    total = tff.federated_computation(tff.federated_sum, AT_CLIENTS)
    with execution.in_process_context():
        with execution.measured_communication() as outer:
            total([1.0, 2.0])
            with execution.measured_communication() as inner:
                total([1.0])
            thread = threading.Thread(target=measure, args=(total, [1.0, 2.0, 3.0]))
            thread.start()
            thread.join()
        total([1.0, 2.0])
    assert inner.total == Communication(0, 4)
    assert outer.total == Communication(0, 12)


def test_a_round_of_fed_avg_sends_the_weights_each_way():
    learning = process("linear", "sgd")
    weights = 4 * (2 * 3 + 3)
    for num_clients in (2, 5):
        clients = [points(4, seed).batch(2) for seed in range(num_clients)]
        with (
            execution.in_process_context(),
            execution.measured_communication() as meter,
        ):
            learning.next(learning.initialize(), clients)
        assert meter.total.bytes_down == num_clients * weights
        # With the update goes its weight, and the sums of the model's metrics.
        assert (
            0 < meter.total.bytes_up - num_clients * (weights + 4) <= num_clients * 40
        )
