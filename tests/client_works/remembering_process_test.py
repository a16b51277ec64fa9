"""Clients that remember: their next rows, and the sum that the server shares."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.one_client import CLIENT, MODEL, run
from tff_algos.client_works import client_report, remembering_process
from tff_algos.client_works.remembering_process import RememberingReport


def test_a_factor_keeps_the_digits_of_a_python_number():
    one = (tf.constant(1.0, tf.float64),)
    (found,) = remembering_process.add_scaled(one, one, 0.1)
    assert found.numpy() == 1.1


def one_more(view, given):
    """A client that adds one to its row, and its row to what is shared."""
    row = remembering_process.add_scaled(given.row, (tf.ones(2),))
    report = client_report.report(
        view,
        given.server_weights,
        (tf.zeros(5, tf.float64), tf.reduce_sum(tf.cast(row[0], tf.float64))),
        tff.learning.ClientWeighting.UNIFORM,
        tf.constant(1, tf.int64),
        view.initial_metrics(),
        row,
        non_trainable=(),
    )
    return RememberingReport(report, row, row)


def data(number, row):
    row = (np.array(row, np.float32),)
    return collections.OrderedDict(
        examples=CLIENT.batches(2),
        client_index=tf.data.Dataset.from_tensors(np.int32(number)),
        memory=tf.data.Dataset.from_tensors(row),
    )


def test_rows_come_back_and_contributions_are_added_up():
    work = remembering_process.build_remembering_process(
        MODEL,
        one_more,
        (tf.TensorSpec([2]),),
        initial_shared=lambda: (tf.zeros(2),),
        next_shared=remembering_process.add_scaled,
    )
    # The row of the last client is not finite: it stays, and counts for nothing.
    output = run(work, data(3, [0, 5]), data(1, [10, 20]), data(2, [np.inf, 0]))
    memory = output.measurements["memory"]
    np.testing.assert_array_equal(memory["client_index"], [3, 1, 2])
    np.testing.assert_array_equal(memory["accepted"], [True, True, False])
    np.testing.assert_array_equal(memory["row"][0], [[1, 6], [11, 21], [np.inf, 0]])
    np.testing.assert_array_equal(output.state.shared[0], [12, 27])
    assert output.state.round_num == 1
