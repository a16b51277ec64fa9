"""Many clients as one vectorized program: the same results as one by one."""

import collections

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import strategies as st

from tests.testing import tiny_task
from tests.testing.plane_processes import SGDM, assert_close, points, process, rounds
from tff_algos import execution
from tff_algos.execution import batched_passes, client_batches


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


def test_fewer_clients_run_at_once_where_later_ones_have_far_more_data(monkeypatch):
    cohort = [points(size, seed).batch(2) for seed, size in enumerate([1, 6, 9, 9, 2])]
    learning = process("two layers", "momentum")
    whole = rounds(learning, [cohort], batch_clients=True)
    counts = []
    run = batched_passes.BatchedPass._run_part

    def counted(self, inputs, positions, data, functions):
        counts.append([len(each.batches) for (each,) in data])
        return run(self, inputs, positions, data, functions)

    # An example takes 12 bytes: the first client's data fit 8 times, and are twice that
    # with the third client's.
    monkeypatch.setattr(batched_passes, "_MAX_CHUNK_DATA_BYTES", 8 * 12)
    monkeypatch.setattr(batched_passes.BatchedPass, "_run_part", counted)
    parts = rounds(learning, [cohort], batch_clients=True)
    assert counts == [[1, 3, 5], [5, 1]]
    assert_close(parts.state.global_model_weights, whole.state.global_model_weights)
    assert_close(parts.metrics["client_work"], whole.metrics["client_work"])


@tff.tensorflow.computation(tff.SequenceType(np.float32))
def _sum_of(dataset):
    return dataset.reduce(0.0, lambda total, x: total + x)


@pytest.mark.parametrize("max_bytes", [256 << 20, 12, 1])
def test_aggregates_that_are_no_sums_take_clients_in_their_order(
    max_bytes, monkeypatch
):
    monkeypatch.setattr(batched_passes, "_MAX_CHUNK_DATA_BYTES", max_bytes)
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


@pytest.mark.parametrize("max_bytes", [256 << 20, 12, 1])
def test_values_of_clients_come_back_in_their_order(max_bytes, monkeypatch):
    monkeypatch.setattr(batched_passes, "_MAX_CHUNK_DATA_BYTES", max_bytes)

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


def _client(sizes, start):
    batches = tuple(
        (np.arange(start, start + size, dtype=np.float32),) for size in sizes
    )
    shapes = tuple(((size,),) for size in sizes)
    return client_batches.ClientBatches(batches, shapes, 4 * sum(sizes))


@hypothesis.given(
    st.lists(st.lists(st.integers(1, 3), max_size=4), min_size=1, max_size=5)
)
def test_a_schedule_takes_every_batch_once_in_order_and_pads_nothing(sizes):
    clients = [_client(each, 100 * index) for index, each in enumerate(sizes)]
    seen = collections.defaultdict(list)
    for step in batched_passes.schedule(clients):
        members = range(len(clients)) if step.clients is None else step.clients
        (stacked,) = step.batch
        assert len(stacked) == len(members)
        for member, batch in zip(members, stacked, strict=True):
            seen[int(member)].append(batch)
    for index, client in enumerate(clients):
        expected = [part for (part,) in client.batches]
        assert len(seen[index]) == len(expected)
        for found, batch in zip(seen[index], expected, strict=True):
            np.testing.assert_array_equal(found, batch)


def test_clients_with_the_same_shapes_take_their_steps_together():
    clients = [_client([3, 3, 1], 0), _client([3, 3, 2], 10), _client([3, 3, 1], 20)]
    steps = list(batched_passes.schedule(clients))
    members = [
        None if step.clients is None else step.clients.tolist() for step in steps
    ]
    assert members == [None, None, [0, 2], [1]]
