"""Aggregates that only collect: recognized, and right in every way they run."""

import collections
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import equivalence
from tff_algos import aggregators, execution
from tff_algos.execution import accumulation, compilation, plan, row_memory

VALUE = tff.to_type(collections.OrderedDict(a=(np.float32, [3]), b=np.int32))


def values(count):
    rng = np.random.default_rng(count)
    return [
        collections.OrderedDict(a=rng.normal(size=3).astype(np.float32), b=np.int32(n))
        for n in range(count)
    ]


def aggregates(computation):
    steps = compilation.compile_to_plan(computation, [], False).steps
    passes = [step for step in steps if isinstance(step, plan.ClientPass)]
    return [each for step in passes for each in step.aggregates]


def aggregation(zero, accumulate, rows_type, value_type):
    """A computation that accumulates in the way given, and merges by concatenation."""
    accumulate = tff.tensorflow.computation(accumulate, [rows_type, value_type])

    @tff.tensorflow.computation(rows_type, rows_type)
    def merge(a, b):
        return tf.concat([a, b], 0)

    @tff.tensorflow.computation(rows_type)
    def report(rows):
        return tf.identity(rows)

    @tff.federated_computation(tff.FederatedType(value_type, tff.CLIENTS))
    def aggregate(value):
        return tff.federated_aggregate(value, zero(), accumulate, merge, report)

    return aggregate


def test_gathering_is_recognized_and_sums_are_not():
    gather = aggregators.build_gather_computation(VALUE)
    assert [accumulation.appends_rows(each) for each in aggregates(gather)] == [True]

    @tff.federated_computation(tff.FederatedType(VALUE, tff.CLIENTS))
    def add(value):
        return tff.federated_sum(value)

    assert not any(accumulation.appends_rows(each) for each in aggregates(add))


ROWS, ROW = tff.TensorType(np.float32, [None, 2]), tff.TensorType(np.float32, [2])


@tff.tensorflow.computation
def two_rows():
    return tf.constant([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    ("accumulate", "recognized"),
    [
        (lambda rows, row: tf.concat([rows, tf.expand_dims(row, 0)], 0), True),
        (lambda rows, row: tf.concat([tf.expand_dims(row, 0), rows], 0), False),
        (lambda rows, row: tf.concat([rows, tf.expand_dims(2 * row, 0)], 0), False),
        (lambda rows, row: tf.concat([rows, rows[:1] + row], 0), False),
    ],
)
def test_only_what_appends_is_written_in_place_and_all_is_as_on_tffs_runtime(
    accumulate, recognized
):
    computation = aggregation(two_rows, accumulate, ROWS, ROW)
    (aggregate,) = aggregates(computation)
    assert accumulation.appends_rows(aggregate) == recognized
    clients = [np.array([n, -n], np.float32) for n in range(5)]
    found = equivalence.assert_same_in_both(computation, clients)
    assert found.shape == (7, 2)


@pytest.mark.parametrize("batch_clients", [False, True])
@pytest.mark.parametrize("count", [1, 2, 300])
def test_rows_are_in_order_however_clients_run(batch_clients, count):
    gather = aggregators.build_gather_computation(VALUE)

    @tff.tensorflow.computation(VALUE)
    def double(value):
        return tf.nest.map_structure(lambda tensor: 2 * tensor, value)

    @tff.federated_computation(tff.FederatedType(VALUE, tff.CLIENTS))
    def gather_doubled(value):
        value = tff.federated_map(double, value)
        return gather(value), tff.federated_sum(value)

    clients = values(count)
    with execution.in_process_context(batch_clients=batch_clients, num_threads=3):
        rows, total = gather_doubled(clients)
        again, _ = gather_doubled(clients)
    np.testing.assert_array_equal(rows["b"], 2 * np.arange(count))
    expected = 2 * np.array([client["a"] for client in clients])
    np.testing.assert_array_equal(rows["a"], expected)
    np.testing.assert_array_equal(again["a"], expected)
    np.testing.assert_allclose(total["a"], expected.sum(axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [0, 3, 2**22])
@pytest.mark.parametrize(
    "dtype",
    [np.float16, np.float32, np.float64, np.int8, np.uint8, np.int32, np.int64]
    + [np.bool_, np.complex64, tf.bfloat16.as_numpy_dtype],
)
def test_rows_of_every_dtype_are_memory_of_their_own(dtype, size):
    gather = aggregators.build_gather_computation(tff.TensorType(dtype, [size]))
    clients = [(np.arange(size) % 99 + n).astype(dtype) for n in range(3)]
    with execution.in_process_context():
        rows = gather(clients)
        others = gather([clients[1]] * 3)
    for n in range(3):
        np.testing.assert_array_equal(rows[n], clients[n])
        np.testing.assert_array_equal(others[n], clients[1])


def min_norm(size, num_blocks):
    return aggregators.MinNormFactory(epsilon=0.0, num_blocks=num_blocks).create(
        tff.TensorType(np.float32, [size]), tff.TensorType(np.float32)
    )


def test_rows_in_blocks_take_the_memory_of_one_block():
    num_clients, size, num_blocks = 5, 1 << 12, 8
    process = min_norm(size, num_blocks)
    clients = [np.full(size, n, np.float32) for n in range(1, num_clients + 1)]
    with execution.in_process_context() as context:
        output = process.next(process.initialize(), clients, [1.0] * num_clients)
    np.testing.assert_allclose(output.result, np.full(size, 3.0), rtol=1e-6)
    all_rows = num_clients * size * 4
    held = context._resources.row_memory.num_bytes
    assert all_rows / num_blocks <= held < 1.5 * all_rows / num_blocks


def test_the_next_round_writes_its_rows_into_the_memory_of_the_last(monkeypatch):
    num_clients, size = 5, 1 << 12
    allocated = []
    allocate = row_memory._aligned_memory

    def watched(size):
        allocated.append(size)
        return allocate(size)

    monkeypatch.setattr(row_memory, "_aligned_memory", watched)
    process = min_norm(size, 1)
    with execution.in_process_context() as context:
        for number in range(4):
            clients = [np.full(size, number + n, np.float32) for n in range(1, 6)]
            output = process.next(process.initialize(), clients, [1.0] * num_clients)
            np.testing.assert_allclose(
                output.result, np.full(size, number + 3.0), rtol=1e-6
            )
    assert allocated.count(num_clients * size * 4) == 1
    assert context._resources.row_memory.num_bytes == sum(allocated)


def test_rows_that_are_a_result_are_not_written_again():
    gather = aggregators.build_gather_computation(tff.TensorType(np.float32, [1 << 12]))
    with execution.in_process_context():
        results = [
            gather([np.full(1 << 12, number, np.float32)] * 3) for number in range(4)
        ]
    for number, rows in enumerate(results):
        np.testing.assert_array_equal(rows, np.full([3, 1 << 12], number))


@pytest.mark.parametrize(
    ("dtype", "on_gpu"),
    [
        (tf.float32, True),
        (tf.float64, True),
        (tf.bool, False),
        (tf.int32, False),
        (tf.int64, False),
        (tf.string, False),
        (tf.bfloat16, False),
    ],
)
def test_rows_stay_on_a_gpu_only_if_it_updates_them_in_place(dtype, on_gpu):
    """On a GPU, TensorFlow would write booleans into a copy of rows on the CPU."""
    device = "/job:localhost/replica:0/task:0/device:GPU:1"
    value = types.SimpleNamespace(dtype=dtype, device=device)
    found = accumulation._device_of_rows(value)
    assert found == (device if on_gpu else "/device:CPU:0")
    value.device = device.replace("GPU:1", "CPU:0")
    assert accumulation._device_of_rows(value) == "/device:CPU:0"


@pytest.mark.parametrize("batch_clients", [False, True])
@pytest.mark.parametrize("sizes", [[3, 3, 1, 3], [1, 3, 3, 3], [1, 1, 1, 1]])
def test_a_row_of_another_shape_is_no_row_of_repeated_elements(batch_clients, sizes):
    value = tff.TensorType(np.float32, [None])
    aggregate = aggregation(
        tff.tensorflow.computation(lambda: tf.zeros([0, 3])),
        lambda rows, row: tf.concat([rows, tf.expand_dims(row, 0)], 0),
        tff.TensorType(np.float32, [None, 3]),
        value,
    )
    doubled = tff.tensorflow.computation(lambda x: 2 * x, value)

    @tff.federated_computation(tff.FederatedType(value, tff.CLIENTS))
    def gather(values):
        return aggregate(tff.federated_map(doubled, values))

    with execution.in_process_context(batch_clients=batch_clients):
        rows = gather([np.full([3], n, np.float32) for n in range(4)])
        np.testing.assert_array_equal(rows, [[2 * n] * 3 for n in range(4)])
        with pytest.raises(
            execution.ClientError, match=r"of 4: Expected a row of shape \(3,\), found"
        ) as raised:
            gather([np.ones([size], np.float32) for size in sizes])
        assert raised.value.position == sizes.index(1)


def test_rows_for_which_there_is_no_memory_are_asked_for_only_once(monkeypatch):
    attempts = []

    def empty(shape, dtype):
        attempts.append(shape)
        raise tf.errors.ResourceExhaustedError(None, None, "no memory")

    monkeypatch.setattr(tf.raw_ops, "Empty", empty)
    rows = accumulation._Rows(tf.zeros([0], tf.bool), 2, row_memory.RowMemory())
    for position in range(2):
        with pytest.raises(tf.errors.ResourceExhaustedError, match="no memory"):
            rows.write(position, tf.constant(True), stacked=False)
    assert attempts == [[2]]
