"""Rows of remembered weights: whether there are any yet, and the weights."""

import numpy as np
import tensorflow as tf

from tasks.models.normalized import build_tiny_nn
from tests.testing.one_client import MODEL, START, vector, weights_at
from tff_algos.client_works import remembered_weights
from tff_algos.models import WeightMask, local_model


def test_a_row_is_a_flag_and_tensors_like_the_trainable_weights():
    specs = remembered_weights.specs(MODEL)
    assert specs["seen"] == tf.TensorSpec([], tf.bool)
    assert [spec.shape.as_list() for spec in specs["weights"]] == [[5], []]


def test_in_the_first_round_a_client_reads_the_servers_weights():
    zeros = weights_at(np.zeros(6)).trainable
    row = {"seen": tf.constant(False), "weights": zeros}
    found = remembered_weights.read(row, weights_at()).trainable
    np.testing.assert_array_equal(vector(found), START)


def test_later_it_reads_the_weights_that_it_ended_with():
    own = weights_at(START + 1)
    row = remembered_weights.row(own)
    found = remembered_weights.read(row, weights_at()).trainable
    np.testing.assert_array_equal(vector(found), START + 1)


def test_moving_statistics_are_remembered_too():
    model = build_tiny_nn((2, 2, 1), num_classes=2, seed=0)
    specs = remembered_weights.specs(model)
    trainable, statistics = model.initial_weights
    assert [tuple(spec.shape) for spec in specs["statistics"]] == [
        w.shape for w in statistics
    ]
    server = local_model.Weights(*map(_constants, model.initial_weights))
    own = local_model.Weights(
        _constants(w + 1 for w in trainable), _constants(w + 2 for w in statistics)
    )
    row = remembered_weights.row(own)
    found = remembered_weights.read(row, server)
    np.testing.assert_array_equal(found.non_trainable[0], statistics[0] + 2)
    unseen = row | {"seen": tf.constant(False)}
    found = remembered_weights.read(unseen, server)
    np.testing.assert_array_equal(found.non_trainable[0], statistics[0])


def test_a_part_is_read_in_its_places_and_the_servers_weights_in_the_others():
    part = WeightMask((False, True), ())
    assert list(remembered_weights.specs(MODEL, part)) == ["seen", "weights"]
    row = remembered_weights.row(weights_at(START + 1), part)
    (bias,) = row["weights"]
    assert bias == START[-1] + 1
    found = remembered_weights.read(row, weights_at(), part).trainable
    np.testing.assert_array_equal(vector(found), [*START[:-1], START[-1] + 1])


def test_a_row_of_nothing_is_the_flag_alone():
    nothing = WeightMask((False, False), ())
    assert list(remembered_weights.specs(MODEL, nothing)) == ["seen"]
    row = remembered_weights.row(weights_at(START + 1), nothing)
    found = remembered_weights.read(row, weights_at(), nothing).trainable
    np.testing.assert_array_equal(vector(found), START)


def _constants(arrays):
    return tuple(map(tf.constant, arrays))
