"""Many clients as one vectorised program: the same results as one by one."""

import functools

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import strategies as st

from tests.testing import tiny_task
from tff_algos import execution
from tff_algos.execution import (
    batched_passes,
    client_passes,
    compilation,
    pass_runner,
    plan,
    vectorization,
)

SGDM = tff.learning.optimizers.build_sgdm


def _two_layers() -> tff.learning.models.FunctionalModel:
    """A network with one hidden layer on the tiny task's points."""
    base = tiny_task.model()
    rng = np.random.default_rng(1)

    @tf.function
    def predict(weights, x, training):
        del training
        kernel, bias, head = weights[0]
        return tf.nn.relu(x @ kernel + bias) @ head

    initial = (
        rng.normal(size=(2, 4)).astype(np.float32),
        np.zeros(4, np.float32),
        rng.normal(size=(4, 3)).astype(np.float32),
    )
    return tff.learning.models.FunctionalModel(
        initial_weights=(initial, ()),
        predict_on_batch_fn=predict,
        loss_fn=base.loss,
        metrics_fns=(
            base.initialize_metrics_state,
            base.update_metrics_state,
            base.finalize_metrics,
        ),
        input_spec=base.input_spec,
    )


@functools.cache
def process(model: str, optimizer: str) -> tff.learning.templates.LearningProcess:
    models = {"linear": tiny_task.model, "two layers": _two_layers}
    optimizers = {
        "sgd": SGDM(0.1),
        "momentum": SGDM(0.1, momentum=0.9),
        "adam": tff.learning.optimizers.build_adam(0.05),
    }
    return tff.learning.algorithms.build_weighted_fed_avg(
        models[model](), client_optimizer_fn=optimizers[optimizer]
    )


@functools.cache
def context(batch_clients: bool) -> execution.InProcessContext:
    return execution.InProcessContext(batch_clients=batch_clients)


def points(size: int, seed: int) -> tf.data.Dataset:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 2)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, rng.integers(0, 3, size, np.int32)))


def rounds(learning, cohorts, batch_clients: bool):
    with tff.framework.get_context_stack().install(context(batch_clients)):
        state = learning.initialize()
        for cohort in cohorts:
            output = learning.next(state, cohort)
            state = output.state
    return output


def assert_close(one, other):
    def compare(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

    tf.nest.map_structure(compare, one, other)


@pytest.fixture
def no_streaming(monkeypatch):
    """Fails the test if clients run one by one."""

    def run(self, inputs, workers):
        raise AssertionError(f"{inputs.num_clients} clients ran one by one")

    def forbid():
        monkeypatch.setattr(client_passes.StreamingPass, "run", run)

    return forbid


@hypothesis.given(
    sizes=st.lists(st.integers(0, 9), min_size=2, max_size=5),
    batch_size=st.integers(1, 5),
    epochs=st.integers(1, 3),
    model=st.sampled_from(["linear", "two layers"]),
    optimizer=st.sampled_from(["sgd", "momentum", "adam"]),
)
@hypothesis.settings(max_examples=25, deadline=None)
def test_many_at_a_time_gives_what_one_by_one_gives(
    sizes, batch_size, epochs, model, optimizer
):
    cohort = [
        points(size, seed).batch(batch_size).repeat(epochs)
        for seed, size in enumerate(sizes)
    ]
    learning = process(model, optimizer)
    apart = rounds(learning, [cohort, cohort[::-1]], batch_clients=False)
    together = rounds(learning, [cohort, cohort[::-1]], batch_clients=True)
    assert_close(together.state.global_model_weights, apart.state.global_model_weights)
    assert_close(together.metrics["client_work"], apart.metrics["client_work"])


def test_a_batch_axis_of_its_own_for_every_chunk_changes_nothing(monkeypatch):
    cohort = [points(3 + seed % 4, seed).batch(2) for seed in range(9)]
    learning = process("linear", "sgd")
    whole = rounds(learning, [cohort], batch_clients=True)
    monkeypatch.setattr(batched_passes, "_MAX_CHUNK_CLIENTS", 2)
    chunked = rounds(learning, [cohort], batch_clients=True)
    assert_close(chunked.state.global_model_weights, whole.state.global_model_weights)


def _train_only(learning):
    (client_pass,) = [
        step
        for step in compilation.compile_to_plan(learning.next).steps
        if isinstance(step, plan.ClientPass)
    ]
    return client_pass


def test_small_models_run_many_clients_at_a_time_by_default(no_streaming):
    cohort = [points(4, seed).batch(2) for seed in range(4)]
    learning = process("linear", "sgd")
    with execution.in_process_context():
        state = learning.initialize()
        no_streaming()
        output = learning.next(state, cohort)
    assert output.metrics["client_work"]["train"]["num_examples"] == 16


def _many_at_a_time_is_wrong(self, inputs, workers, chunk_bytes):
    raise AssertionError("clients ran many at a time")


def test_fewer_than_four_clients_run_one_by_one_unless_that_is_not_wanted(
    monkeypatch, no_streaming
):
    cohort = [points(4, seed).batch(2) for seed in range(3)]
    learning = process("linear", "sgd")
    with monkeypatch.context() as patched:
        patched.setattr(batched_passes.BatchedPass, "run", _many_at_a_time_is_wrong)
        with execution.in_process_context():
            state = learning.initialize()
            expected = learning.next(state, cohort)
    no_streaming()
    with execution.in_process_context(batch_clients=True):
        found = learning.next(state, cohort)
    assert_close(found.state.global_model_weights, expected.state.global_model_weights)


def test_large_models_run_client_by_client_by_default_on_cpus(monkeypatch):
    monkeypatch.setattr(pass_runner, "_MAX_CPU_CLIENT_BYTES", 8)
    monkeypatch.setattr(batched_passes.BatchedPass, "run", _many_at_a_time_is_wrong)
    cohort = [points(4, seed).batch(2) for seed in range(4)]
    with execution.in_process_context():
        learning = process("linear", "sgd")
        output = learning.next(learning.initialize(), cohort)
    assert output.metrics["client_work"]["train"]["num_examples"] == 16


def test_large_values_are_not_stacked_on_cpus_though_there_is_no_state(monkeypatch):
    monkeypatch.setattr(batched_passes.BatchedPass, "run", _many_at_a_time_is_wrong)
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


def test_the_weights_of_the_sum_of_reductions_is_the_number_of_clients():
    work = vectorization.vectorize(_train_only(process("linear", "sgd")).fragment)
    assert len(work.reductions) == 1
    assert work.data_inputs != (None,)
    shapes = [spec.shape.as_list() for spec in work.reductions[0].state_specs]
    assert [2, 3] in shapes


def test_aggregates_of_learning_processes_are_sums():
    aggregates = _train_only(process("linear", "sgd")).aggregates
    assert [vectorization.is_sum(aggregate) for aggregate in aggregates] == [True] * 3


def _aggregate_of(accumulate):
    zero = tff.tensorflow.computation(lambda: 0.0)
    merge = tff.tensorflow.computation(lambda a, b: a + b, (np.float32, np.float32))
    report = tff.tensorflow.computation(lambda a: a, np.float32)

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def aggregate(values):
        return tff.federated_aggregate(
            values,
            zero(),
            tff.tensorflow.computation(accumulate, (np.float32, np.float32)),
            merge,
            report,
        )

    (client_pass,) = [
        step
        for step in compilation.compile_to_plan(aggregate).steps
        if isinstance(step, plan.ClientPass)
    ]
    return client_pass.aggregates[0]


@pytest.mark.parametrize(
    ("accumulate", "expected"),
    [
        (lambda total, value: total + value, True),
        (lambda total, value: value + total, True),
        (lambda total, value: total + total, False),
        (lambda total, value: value + value, False),
        (lambda total, value: total - value, False),
        (lambda total, value: total + 2.0 * value, False),
        (lambda total, value: tf.maximum(total, value), False),
    ],
)
def test_only_a_plain_sum_counts_as_a_sum(accumulate, expected):
    assert vectorization.is_sum(_aggregate_of(accumulate)) is expected


@tff.tensorflow.computation(tff.SequenceType(np.float32))
def _sum_of(dataset):
    return dataset.reduce(0.0, lambda total, x: total + x)


def test_aggregates_that_are_no_sums_take_clients_in_their_order():
    text = tff.TensorType(np.int32)

    @tff.federated_computation(
        tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS)
    )
    def digits(data):
        return tff.federated_aggregate(
            tff.federated_map(_sum_of, data),
            0,
            tff.tensorflow.computation(
                lambda total, x: 10 * total + tf.cast(x, tf.int32), (text, np.float32)
            ),
            tff.tensorflow.computation(lambda a, b: a, (text, text)),
            tff.tensorflow.computation(lambda a: a, text),
        )

    data = [[1.0, 1.0], [3.0], [], [1.0, 1.0, 1.0, 1.0]]
    with execution.in_process_context(batch_clients=True):
        assert digits(data) == 2304


def test_values_of_clients_come_back_in_their_order():
    @tff.federated_computation(
        tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS)
    )
    def sums(data):
        return tff.federated_map(_sum_of, data)

    with execution.in_process_context(batch_clients=True):
        assert sums([[1.0, 1.0], [3.0], []]) == [2.0, 3.0, 0.0]


def test_a_second_pass_over_the_data_starts_from_the_first_ones_result():
    @tff.tensorflow.computation(tff.SequenceType(np.float32), np.float32)
    def variance(dataset, offset):
        total, count = dataset.reduce((0.0, 0.0), lambda s, x: (s[0] + x, s[1] + 1.0))
        mean = total / count
        squares = dataset.reduce(0.0, lambda s, x: s + (x - mean) ** 2 + offset)
        return squares / count

    @tff.federated_computation(
        tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS),
        tff.FederatedType(np.float32, tff.SERVER),
    )
    def variances(data, offset):
        offset = tff.federated_broadcast(offset)
        return tff.federated_map(variance, (data, offset))

    data = [[1.0, 3.0], [5.0], [0.0, 0.0, 6.0]]
    with execution.in_process_context(batch_clients=True):
        np.testing.assert_allclose(variances(data, 0.5), [1.5, 0.5, 8.5])


def test_work_with_variables_runs_client_by_client():
    @tff.tensorflow.computation(tff.SequenceType(np.float32))
    def largest(dataset):
        best = tf.Variable(-1.0)

        @tf.function
        def reduce(dataset):
            for x in dataset:
                best.assign(tf.maximum(best, x))
            return best.read_value()

        return reduce(dataset)

    @tff.federated_computation(
        tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS)
    )
    def sums(data):
        return tff.federated_sum(tff.federated_map(largest, data))

    with execution.in_process_context(batch_clients=True):
        assert sums([[1.0, 5.0], [3.0], [2.0]]) == 10.0


def test_work_that_cannot_be_vectorised_though_demanded_is_told_once(monkeypatch):
    told = []
    monkeypatch.setattr(pass_runner.logging, "log", lambda *said: told.append(said))

    @tff.tensorflow.computation(np.float32)
    def checked(x):
        with tf.control_dependencies([tf.debugging.assert_positive(x)]):
            return tf.identity(x)

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def total(values):
        return tff.federated_sum(tff.federated_map(checked, values))

    with execution.in_process_context(batch_clients=True):
        assert [total([1.0, 2.0]), total([1.0, 3.0])] == [3.0, 4.0]
    ((level, text, reason),) = told
    assert level == pass_runner.logging.WARNING
    assert "one by one" in text and "Assert" in str(reason)


def test_an_error_names_the_client_though_many_ran_together():
    def parse(text):
        return tf.strings.to_number(text)

    good = tf.data.Dataset.from_tensor_slices(["1", "2"]).map(parse)
    bad = tf.data.Dataset.from_tensor_slices(["1", "two"]).map(parse)

    @tff.federated_computation(
        tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS)
    )
    def sums(data):
        return tff.federated_sum(tff.federated_map(_sum_of, data))

    with execution.in_process_context(batch_clients=True):
        assert sums([good, good]) == 6.0
        with pytest.raises(
            execution.ClientError, match=r"Client 1 of 3: .*two"
        ) as error:
            sums([good, bad, good])
        assert error.value.position == 1
        assert sums([good, good]) == 6.0


def test_every_client_draws_random_numbers_of_its_own():
    @tff.tensorflow.computation(tff.SequenceType(np.float32))
    def noisy(dataset):
        return dataset.reduce(0.0, lambda s, x: s + x + tf.random.normal([]))

    @tff.federated_computation(
        tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS)
    )
    def noise(data):
        return tff.federated_map(noisy, data)

    num_clients, num_steps = 400, 9
    with execution.in_process_context(batch_clients=True):
        values = np.array(noise([[1.0] * num_steps] * num_clients))
    assert len(set(values)) == num_clients
    # Nine independent draws each: mean 9, deviation 3; five standard errors.
    assert abs(values.mean() - 9) < 5 * 3 / np.sqrt(num_clients)
    assert abs(values.std() - 3) < 5 * 3 / np.sqrt(2 * num_clients)


def test_dropout_drops_the_same_share_as_client_by_client():
    base = tiny_task.model()

    @tf.function
    def predict(weights, x, training):
        kernel, bias = weights[0]
        return (tf.nn.dropout(x, 0.5) if training else x) @ kernel + bias

    model = tff.learning.models.FunctionalModel(
        initial_weights=base.initial_weights,
        predict_on_batch_fn=predict,
        loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean(output[:, 0]),
        metrics_fns=(
            base.initialize_metrics_state,
            base.update_metrics_state,
            base.finalize_metrics,
        ),
        input_spec=base.input_spec,
    )
    learning = tff.learning.algorithms.build_weighted_fed_avg(model, SGDM(1.0))
    ones = tf.data.Dataset.from_tensors(
        (np.ones([51, 2], np.float32), np.zeros(51, np.int32))
    )
    # The gradient of the kernel is the mean of inputs that are 0 or 2; of an odd
    # number of them it is never 1, as it is without dropout.
    for batch_clients in (False, True):
        output = rounds(learning, [[ones] * 39], batch_clients)
        kernel = output.state.global_model_weights.trainable[0]
        moved = base.initial_weights[0][0] - kernel
        assert np.all(np.abs(moved[:, 0] - 1) < 5 / np.sqrt(51 * 39))
        assert np.all(moved[:, 0] != 1.0)
        assert not moved[:, 1:].any()


def test_shuffled_data_are_read_anew_every_round():
    @tff.tensorflow.computation(tff.SequenceType(np.int64))
    def digits(dataset):
        return dataset.reduce(tf.constant(0, tf.int64), lambda s, x: 10 * s + x)

    @tff.federated_computation(
        tff.FederatedType(tff.SequenceType(np.int64), tff.CLIENTS)
    )
    def orders(data):
        return tff.federated_map(digits, data)

    data = [tf.data.Dataset.range(6).shuffle(6, seed=seed) for seed in (1, 2)]
    with execution.in_process_context(batch_clients=True):
        seen = {tuple(orders(data)) for _ in range(5)}
    assert len(seen) > 1
    assert {tuple(sorted(f"{order:06d}")) for pair in seen for order in pair} == {
        tuple("012345")
    }


def test_steps_with_a_seed_of_their_own_draw_what_they_draw_one_by_one():
    @tff.tensorflow.computation(tff.SequenceType(np.float32))
    def noisy(dataset):
        return dataset.reduce(0.0, lambda s, x: s + tf.random.uniform([], seed=3))

    @tff.federated_computation(
        tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS)
    )
    def noise(data):
        return tff.federated_map(noisy, data)

    drawn = []
    for batch_clients in (False, True):
        with execution.in_process_context(batch_clients=batch_clients):
            drawn.append(noise([[1.0, 1.0]] * 5))
    assert drawn[0] == drawn[1]
