"""What vectorizing a client's work finds: its reductions, and which aggregates are sums."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.plane_processes import client_pass_of, process
from tff_algos.execution import compilation, plan, vectorization


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
