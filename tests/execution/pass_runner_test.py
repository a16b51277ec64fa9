"""Which clients run many at a time, which one by one, and what is said of it."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.plane_processes import (
    assert_close,
    many_at_a_time_is_wrong,
    points,
    process,
)
from tff_algos import execution
from tff_algos.execution import batched_passes, pass_runner


def test_small_models_run_many_clients_at_a_time_by_default(no_streaming):
    cohort = [points(4, seed).batch(2) for seed in range(4)]
    learning = process("linear", "sgd")
    with execution.in_process_context():
        state = learning.initialize()
        no_streaming()
        output = learning.next(state, cohort)
    assert output.metrics["client_work"]["train"]["num_examples"] == 16


def test_fewer_than_four_clients_run_one_by_one_unless_that_is_not_wanted(
    monkeypatch, no_streaming
):
    cohort = [points(4, seed).batch(2) for seed in range(3)]
    learning = process("linear", "sgd")
    with monkeypatch.context() as patched:
        patched.setattr(batched_passes.BatchedPass, "run", many_at_a_time_is_wrong)
        with execution.in_process_context():
            state = learning.initialize()
            expected = learning.next(state, cohort)
    no_streaming()
    with execution.in_process_context(batch_clients=True):
        found = learning.next(state, cohort)
    assert_close(found.state.global_model_weights, expected.state.global_model_weights)


def test_large_models_run_client_by_client_by_default_on_cpus(monkeypatch):
    monkeypatch.setattr(pass_runner, "_MAX_CPU_CLIENT_BYTES", 8)
    monkeypatch.setattr(batched_passes.BatchedPass, "run", many_at_a_time_is_wrong)
    cohort = [points(4, seed).batch(2) for seed in range(4)]
    with execution.in_process_context():
        learning = process("linear", "sgd")
        output = learning.next(learning.initialize(), cohort)
    assert output.metrics["client_work"]["train"]["num_examples"] == 16


def test_large_values_are_not_stacked_on_cpus_though_there_is_no_state(monkeypatch):
    monkeypatch.setattr(batched_passes.BatchedPass, "run", many_at_a_time_is_wrong)
    vector = tff.TensorType(np.float32, [1 << 17])

    @tff.tensorflow.computation(vector)
    def double(x):
        return 2 * x

    @tff.federated_computation(tff.FederatedType(vector, tff.CLIENTS))
    def sum_of_doubles(x):
        return tff.federated_sum(tff.federated_map(double, x))

    with execution.in_process_context():
        total = sum_of_doubles([np.full(1 << 17, n, np.float32) for n in range(5)])
    np.testing.assert_array_equal(total, np.full(1 << 17, 20))


def _sum_over_clients(work):
    """The sum of what `work` computes from each client's numbers."""
    compute = tff.tensorflow.computation(work, tff.SequenceType(np.float32))

    @tff.federated_computation(
        tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS)
    )
    def sums(data):
        return tff.federated_sum(tff.federated_map(compute, data))

    return sums


def test_work_with_variables_runs_many_clients_at_a_time(no_streaming):
    def largest(dataset):
        best = tf.Variable(-1.0)

        @tf.function
        def reduce(dataset):
            for x in dataset:
                best.assign(tf.maximum(best, x))
            return best.read_value()

        return reduce(dataset)

    sums = _sum_over_clients(largest)
    no_streaming()
    with execution.in_process_context():
        assert sums([[1.0, 5.0], [3.0], [2.0], [0.5, 0.25]]) == 10.5


def test_work_whose_variables_cannot_be_followed_runs_client_by_client():
    def scaled(dataset):
        factor = tf.Variable(2.0)

        @tf.function
        def reduce(dataset):
            return dataset.map(lambda x: factor * x).reduce(0.0, lambda a, b: a + b)

        return reduce(dataset)

    with execution.in_process_context(batch_clients=True):
        assert _sum_over_clients(scaled)([[1.0, 5.0], [3.0], [2.0]]) == 22.0


def test_work_that_cannot_be_vectorized_though_demanded_is_told_once(monkeypatch):
    told = []
    monkeypatch.setattr(pass_runner.logging, "log", lambda *said: told.append(said))

    @tff.tensorflow.computation(np.float32)
    def printed(x):
        with tf.control_dependencies([tf.print(x, output_stream="file:///dev/null")]):
            return tf.identity(x)

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def total(values):
        return tff.federated_sum(tff.federated_map(printed, values))

    with execution.in_process_context(batch_clients=True):
        assert [total([1.0, 2.0]), total([1.0, 3.0])] == [3.0, 4.0]
    warning = pass_runner.logging.WARNING
    ((text, reason),) = [said for level, *said in told if level == warning]
    assert "one by one" in text and "Print" in str(reason)
