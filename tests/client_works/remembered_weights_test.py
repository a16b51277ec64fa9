"""Rows of remembered weights: whether there are any yet, and the weights."""

import numpy as np
import tensorflow as tf

from tests.testing.one_client import MODEL, START, vector, weights_at
from tff_algos.client_works import local_training, remembered_weights


def test_a_row_is_a_flag_and_tensors_like_the_trainable_weights():
    specs = remembered_weights.specs(MODEL)
    assert specs["seen"] == tf.TensorSpec([], tf.bool)
    assert [spec.shape.as_list() for spec in specs["weights"]] == [[5], []]


def test_in_the_first_round_a_client_reads_the_servers_weights():
    zeros = weights_at(np.zeros(6)).trainable
    row = {"seen": tf.constant(False), "weights": zeros}
    found = remembered_weights.read(row, weights_at().trainable)
    np.testing.assert_array_equal(vector(found), START)


def test_later_it_reads_the_weights_that_it_ended_with():
    own = weights_at(START + 1)
    zero = tf.constant(0, tf.int64)
    final = local_training.TrainingState(own, (), (), zero, zero, ())
    row = remembered_weights.row(local_training.LocalUpdate((), (), final))
    found = remembered_weights.read(row, weights_at().trainable)
    np.testing.assert_array_equal(vector(found), START + 1)
