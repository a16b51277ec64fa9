"""The process of rounds: it counts them, and measures the largest over the clients."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import problems
from tests.testing.numbered_clients import numbered
from tests.testing.one_client import CLIENT, MODEL, run, vector
from tff_algos.client_works import client_report, round_process
from tff_algos.clients.client_data import ClientDataFields

SCALARS = {"num_batches": tf.float32, "whole_batches": tf.int32}
EMPTY = problems.Client(CLIENT.x[:0], CLIENT.y[:0])


def count_batches(view, round_num, server_weights, data):
    """A client whose update is its number of batches, and tells that number."""
    count = data.batches.reduce(tf.constant(0.0, tf.float64), lambda n, _: n + 1)
    report = client_report.report(
        view,
        server_weights,
        (tf.fill([5], count), count + tf.cast(round_num, tf.float64)),
        tff.learning.ClientWeighting.UNIFORM,
        tf.cast(count, tf.int64),
        view.initial_metrics(),
        non_trainable=(),
    )
    measured = {name: tf.cast(count, dtype) for name, dtype in SCALARS.items()}
    return report, measured


def test_rounds_are_counted_and_the_largest_is_measured():
    work = round_process.build_round_process(MODEL, count_batches)
    output = run(work, CLIENT.batches(2), CLIENT.batches(1), EMPTY.batches())
    assert output.state == 1
    updates = [vector(result.update) for result in output.result]
    np.testing.assert_array_equal(updates, [[3] * 6, [5] * 6, [0] * 6])
    assert [result.update_weight for result in output.result] == [1, 1, 0]
    assert output.measurements["num_batches"] == 5
    assert output.measurements["num_empty_clients"] == 1
    assert output.measurements["num_non_finite_clients"] == 0


def test_updates_tell_the_clients_number_where_data_do():
    work = round_process.build_round_process(
        MODEL, count_batches, fields=ClientDataFields(client_index=True)
    )
    output = run(work, *numbered([CLIENT.batches(2)] * 2, [4, 1]))
    assert [result.update["client_index"] for result in output.result] == [4, 1]
    np.testing.assert_array_equal(vector(output.result[1].update["update"]), [3] * 6)
