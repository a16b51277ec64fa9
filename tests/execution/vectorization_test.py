"""What vectorizing a client's work finds: its reductions, and which aggregates are sums."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.plane_processes import client_pass_of, process
from tff_algos.execution import InProcessContext, compilation, plan, vectorization


def test_the_weights_of_the_sum_of_reductions_is_the_number_of_clients():
    work = vectorization.vectorize(client_pass_of(process("linear", "sgd")).fragment)
    assert len(work.reductions) == 1
    assert work.data_inputs != (None,)
    shapes = [spec.shape.as_list() for spec in work.reductions[0].state_specs]
    assert [2, 3] in shapes


def test_aggregates_of_learning_processes_are_sums():
    aggregates = client_pass_of(process("linear", "sgd")).aggregates
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


def _checked_sum(total, value):
    with tf.control_dependencies([tf.debugging.assert_less(value, 10.0)]):
        return total + value


def _sum_then_check(total, value):
    found = total + value
    with tf.control_dependencies([tf.debugging.assert_less(value, 10.0)]):
        return tf.identity(found)


@pytest.mark.parametrize(
    ("accumulate", "expected"),
    [
        (_checked_sum, False),
        (_sum_then_check, False),
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


_SEQUENCE = tff.SequenceType(tff.TensorType(np.float32, (None, 2)))


def _at_clients(function):
    work = tff.tensorflow.computation(tf.function(function), _SEQUENCE)

    @tff.federated_computation(tff.FederatedType(_SEQUENCE, tff.CLIENTS))
    def at_clients(data):
        return tff.federated_map(work, data)

    return at_clients


def _sum_from(data, start):
    """The sum of the examples, if `start` is the same before and after the steps."""
    return data.reduce(start, lambda total, x: total + tf.reduce_sum(x, 0)) - start


def _noise_in_a_loop(data):
    noise = tf.map_fn(
        lambda _: tf.random.normal([]), tf.range(2), fn_output_signature=tf.float32
    )
    return _sum_from(data, noise), noise


def _noise_in_a_branch(data):
    is_noisy = tf.equal(data.reduce(0, lambda n, _: n + 1), 2)
    noise = tf.cond(is_noisy, lambda: tf.random.normal([2]), lambda: tf.zeros([2]))
    return _sum_from(data, noise), noise


def _a_random_number_of_batches(data):
    number = tf.random.uniform([], 0, 3, tf.int64)
    taken = data.take(number).reduce(tf.constant(0, tf.int64), lambda n, _: n + 1)
    return tf.cast(tf.stack([taken - number] * 2), tf.float32), number


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (_noise_in_a_loop, [4.0, 4.0]),
        (_noise_in_a_branch, [4.0, 4.0]),
        (_a_random_number_of_batches, [0.0, 0.0]),
    ],
)
def test_a_clients_random_numbers_are_the_same_before_and_after_its_steps(
    function, expected
):
    data = [tf.data.Dataset.from_tensor_slices(np.ones([4, 2], np.float32)).batch(2)]
    context = InProcessContext(batch_clients=True)
    with tff.framework.get_context_stack().install(context):
        found = _at_clients(function)(data * 12)
    for difference, _ in found:
        np.testing.assert_allclose(difference, expected, atol=1e-5)
    assert len({str(drawn) for _, drawn in found}) > 1


@pytest.mark.parametrize(
    "function", [_noise_in_a_loop, _noise_in_a_branch, _a_random_number_of_batches]
)
def test_random_numbers_outside_of_a_step_are_no_work_of_many_clients(function):
    (client_pass,) = [
        step
        for step in compilation.compile_to_plan(_at_clients(function)).steps
        if isinstance(step, plan.ClientPass)
    ]
    with pytest.raises(vectorization.NotVectorizableError, match="outside of a step"):
        vectorization.vectorize(client_pass.fragment)
