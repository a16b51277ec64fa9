"""Which clients run many at a time, which one by one, and what is said of it."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tf_keras

from tests.testing.leaves import passes_of
from tests.testing.plane_processes import (
    assert_close,
    many_at_a_time_is_wrong,
    points,
    process,
)
from tff_algos import execution, layers
from tff_algos.execution import (
    batched_passes,
    client_batches,
    client_passes,
    pass_runner,
    row_memory,
)


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


def test_only_work_that_fails_twice_in_a_row_is_not_vectorized_again():
    @tff.tensorflow.computation(tff.TensorType(np.float32, [None]))
    def largest(x):
        return tf.reduce_max(x)

    @tff.federated_computation(
        tff.FederatedType(tff.TensorType(np.float32, [None]), tff.CLIENTS)
    )
    def total(values):
        return tff.federated_sum(tff.federated_map(largest, values))

    def cohort(*lengths):
        return [np.full(length, 2.0, np.float32) for length in lengths]

    alike, unlike = cohort(3, 3, 3, 3), cohort(3, 3, 3, 2)
    with execution.in_process_context() as context:
        for values, how in (
            (alike, "vectorized"),
            (unlike, "one by one: .*shapes"),  # They cannot be stacked.
            (alike, "vectorized"),
            (unlike, "one by one: .*shapes"),
            (unlike, "one by one: .*shapes"),
            (alike, "one by one: .*shapes"),
        ):
            assert total(values) == 8.0
            assert re.search(how, context.describe(total).lower())


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


def _pass_of(model_fn):
    learning = tff.learning.algorithms.build_weighted_fed_avg(
        model_fn, tff.learning.optimizers.build_sgdm(0.1)
    )
    (client_pass,) = passes_of(learning.next)
    return client_pass


def _keras(*layers):
    def model_fn():
        model = tf_keras.Sequential([*(layer() for layer in layers)])
        model.build([None, 5, 2])
        return tff.learning.models.from_keras_model(
            model,
            tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=(
                tf.TensorSpec([None, 5, 2], tf.float32),
                tf.TensorSpec([None], tf.int32),
            ),
        )

    return model_fn


@pytest.mark.parametrize(
    ("layer", "is_chosen", "expected"),
    [
        (lambda: tf_keras.layers.LSTM(2), False, "/device:CPU:0"),
        (lambda: layers.LSTM(2), False, "/device:CPU:0"),
        (lambda: tf_keras.layers.LSTM(2), True, "/device:GPU:0"),
        (lambda: tf_keras.layers.Flatten(), False, "/device:GPU:0"),
    ],
)
def test_recurrent_layers_run_on_the_cpu_unless_a_gpu_is_asked_for(
    layer, is_chosen, expected
):
    resources = pass_runner.Resources(
        devices=("/device:GPU:0",),
        workers=client_passes.Workers(1),
        cache=client_batches.BatchCache(0),
        row_memory=row_memory.RowMemory(),
        batch_clients=None,
        default_num_clients=0,
        max_kept_bytes=0,
        devices_are_chosen=is_chosen,
    )
    client_pass = _pass_of(_keras(layer, lambda: tf_keras.layers.Dense(2)))
    found = pass_runner.PassRunner(client_pass, resources)._resources
    assert found.devices == (expected,)
    assert found.clients_on_gpu == ("GPU" in expected)


def _sequences(size):
    rng = np.random.default_rng(size)
    x = rng.normal(size=(size, 5, 2)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, np.arange(size) % 2)).map(
        lambda x, y: (x, tf.cast(y, tf.int32))
    )


def test_recurrent_layers_are_vectorized_only_for_more_clients(capsys):
    learning = tff.learning.algorithms.build_weighted_fed_avg(
        _keras(lambda: tf_keras.layers.SimpleRNN(2), lambda: tf_keras.layers.Dense(2)),
        tff.learning.optimizers.build_sgdm(0.1),
    )
    with execution.in_process_context():
        state = learning.initialize()
        for num_clients, expected in (
            (15, "one by one: fewer than 16 clients"),
            (16, "vectorized: 1 chunk of up to 16 clients"),
        ):
            cohort = [_sequences(2).batch(2) for _ in range(num_clients)]
            execution.explain(learning.next, state, cohort)
            assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("num_clients", "threads_within_op", "is_advised"),
    [(3, 2, True), (1, 2, False), (3, 1, False)],
)
def test_clients_that_occupy_all_threads_are_told_of_threads_within_ops(
    monkeypatch, num_clients, threads_within_op, is_advised
):
    monkeypatch.setattr(
        "tff_algos.execution.op_threads.count", lambda: threads_within_op
    )
    double = tff.tensorflow.computation(lambda x: 2 * x, np.float32)

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def total(values):
        return tff.federated_sum(tff.federated_map(double, values))

    with execution.in_process_context(num_threads=2) as context:
        assert total([1.0] * num_clients) == 2.0 * num_clients
        advice = (
            "2 clients at a time, up to 2 threads within an op: intra_op_threads=1 is "
            "often faster"
        )
        assert (advice in context.describe(total)) == is_advised


def test_states_without_elements_do_not_keep_uneven_clients_apart(capsys):
    """MimeLite's optimizer without momentum has an empty slot."""
    learning = tff.learning.algorithms.build_weighted_mime_lite(
        _keras(lambda: tf_keras.layers.Flatten(), lambda: tf_keras.layers.Dense(2)),
        tff.learning.optimizers.build_sgdm(0.1),
    )
    cohort = [_sequences(size).batch(2) for size in (2, 5, 3, 4)]
    with execution.in_process_context(batch_clients=False):
        state = learning.initialize()
        expected = learning.next(state, cohort).state.global_model_weights
    with execution.in_process_context():
        found = learning.next(state, cohort).state.global_model_weights
        execution.explain(learning.next, state, cohort)
    assert "one by one" not in capsys.readouterr().out
    assert_close(found, expected)


def test_clients_may_be_counted_by_what_they_send_without_a_value():
    nothing = tff.tensorflow.computation(lambda x: (), np.float32)
    double = tff.tensorflow.computation(lambda x: 2 * x, np.float32)
    counted = tff.StructType([(None, np.int32), (None, nothing.type_signature.result)])

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def count(values):
        number = tff.federated_aggregate(
            tff.federated_map(nothing, values),
            0,
            tff.tensorflow.computation(lambda both: both[0] + 1, counted),
            tff.tensorflow.computation(lambda a, b: a + b, (np.int32, np.int32)),
            tff.tensorflow.computation(lambda a: a, np.int32),
        )
        return number, tff.federated_sum(tff.federated_map(double, values))

    with execution.in_process_context(batch_clients=True) as context:
        assert count([1.0, 2.0, 3.0, 4.0]) == (4, 20.0)
        assert "one by one: an aggregate of nothing" in context.describe(count)
