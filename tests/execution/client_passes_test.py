"""Clients one by one: results in their order, few at once, errors with their number."""

import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.leaves import CLIENT_FLOATS
from tff_algos import execution
from tff_algos.execution import client_passes


@pytest.fixture
def workers():
    return client_passes.Workers(2)


def test_results_come_in_order(workers):
    assert list(workers.map_in_order(lambda k: k * k, 20)) == [k * k for k in range(20)]


def test_no_more_than_twice_the_threads_are_ahead(workers):
    called = []
    results = workers.map_in_order(lambda k: called.append(k) or k, 20)
    assert next(results) == 0
    assert len(called) <= 2 * workers.num_threads
    results.close()
    assert len(called) < 20


def test_calls_that_must_take_turns_do(workers):
    threads = set()
    running = threading.Semaphore(1)

    def work(k):
        assert running.acquire(blocking=False)
        threads.add(threading.current_thread())
        running.release()
        return k

    found = workers.map_in_order(work, 10, one_at_a_time=True)
    assert list(found) == list(range(10))
    assert threads == {threading.current_thread()}


def test_the_first_that_fails_is_raised(workers):
    def work(k):
        if k in (3, 4):
            raise KeyError(k)
        return k

    results = workers.map_in_order(work, 20)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="3"):
        next(results)


def test_calls_within_calls_do_not_wait_for_a_thread(workers):
    both = threading.Barrier(2)

    def work(k):
        both.wait()
        return sum(workers.map_in_order(lambda j: 10 * k + j, 3))

    found = []
    caller = threading.Thread(
        target=lambda: found.extend(workers.map_in_order(work, 2)), daemon=True
    )
    caller.start()
    caller.join(20)
    # Ends the threads if they wait for each other.
    workers._threads.shutdown(wait=False, cancel_futures=True)
    assert found == [3, 33]


@tff.tensorflow.computation(tff.SequenceType(np.int32))
def _sum(numbers):
    return numbers.reduce(np.int32(0), lambda total, number: total + number)


@tff.federated_computation(tff.FederatedType(tff.SequenceType(np.int32), tff.CLIENTS))
def _total(numbers):
    return tff.federated_sum(tff.federated_map(_sum, numbers))


@tff.federated_computation(CLIENT_FLOATS)
def _sum_of_floats(numbers):
    return tff.federated_sum(numbers)


def _generated(*computed):
    """A dataset of what functions return, called when it is read."""
    return tf.data.Dataset.from_generator(
        lambda: (call() for call in computed),
        output_signature=tf.TensorSpec([], "int32"),
    )


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_clients_generator_may_call_another_computation(num_threads):
    context = execution.InProcessContext(num_threads=num_threads, batch_clients=False)

    def called(*numbers):
        with tff.framework.get_context_stack().install(context):
            return int(_sum_of_floats(list(numbers)))

    with tff.framework.get_context_stack().install(context):
        data = [
            _generated(*[lambda k=k: called(float(k), 1.0, 2.0)] * (k + 1))
            for k in range(4)
        ]
        assert _total(data) == sum((k + 3) * (k + 1) for k in range(4))


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_clients_generator_that_calls_its_own_computation_is_refused(num_threads):
    context = execution.InProcessContext(num_threads=num_threads, batch_clients=False)

    def called():
        with tff.framework.get_context_stack().install(context):
            return _total(
                [tf.data.Dataset.range(3).map(lambda n: tf.cast(n, tf.int32))]
            )

    with tff.framework.get_context_stack().install(context):
        assert called() == 3
        message = (
            "^Client 0 of 2: RuntimeError: A Python generator in a client's dataset"
        )
        with pytest.raises(execution.ClientError, match=message):
            _total([_generated(called), _generated(called)])
        assert called() == 3


def test_a_failure_names_the_client_and_the_ops_own_message():
    @tff.tensorflow.computation(np.float32)
    def checked(x):
        check = tf.debugging.assert_positive(x, "not above zero")
        with tf.control_dependencies([check]):
            return tf.identity(x)

    @tff.federated_computation(CLIENT_FLOATS)
    def total(x):
        return tff.federated_sum(tff.federated_map(checked, x))

    named = pytest.raises(client_passes.ClientError, match="^Client 2 of 4: ")
    with execution.in_process_context(batch_clients=False), named as told:
        total([1.0, 2.0, -3.0, 4.0])
    assert told.value.position == 2
    assert "not above zero" in str(told.value)
    assert "stack trace" not in str(told.value)
