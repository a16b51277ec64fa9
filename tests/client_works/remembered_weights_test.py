"""Rows of remembered weights: whether there are any yet, and the weights."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.models.normalized import build_tiny_nn
from tests.testing.one_client import MODEL, START, vector, weights_at
from tests.testing.remembering_cohorts import Training
from tests.testing.remembering_processes import (
    NUM_CLIENTS,
    cohort,
    linear_model_with_a_frozen_weight,
    linear_model_with_statistics,
    process,
)
from tff_algos.client_works import remembered_weights
from tff_algos.models import WeightMask, local_model

ALL = remembered_weights.everything(MODEL)


def test_everything_is_every_weight_that_training_changes():
    assert ALL == WeightMask((True, True), ())
    with_statistics = linear_model_with_statistics()
    assert remembered_weights.everything(with_statistics) == WeightMask(
        (True, True), (True,)
    )
    frozen = linear_model_with_a_frozen_weight()
    assert remembered_weights.everything(frozen) == WeightMask((True, True), (False,))


@pytest.mark.parametrize("name", ["ditto", "apfl", "pfedme", "local", "gradma_w"])
def test_frozen_weights_are_in_no_row_and_infinite_ones_exclude_nobody(name):
    changes = {"persist_previous": True} if name == "gradma_w" else {}
    found, plain = (
        Training(process(name, model, **changes), NUM_CLIENTS)
        for model in ("frozen", "linear")
    )
    for _ in range(2):
        for training in (found, plain):
            output = training.round(cohort((0, 1)))
        assert output.metrics["client_work"]["num_non_finite_clients"] == 0
    for k in range(2):
        assert found.memory.row(k)["seen"]
        np.testing.assert_allclose(found.row(k), plain.row(k), rtol=1e-12)
    if name != "gradma_w":
        own = found.process.get_personal_weights(
            found.process.get_model_weights(found.state), found.memory.row(0)
        )
        assert np.isinf(own.non_trainable[0])


def test_a_row_is_a_flag_and_tensors_like_the_trainable_weights():
    specs = remembered_weights.specs(MODEL, ALL)
    assert specs["seen"] == tf.TensorSpec([], tf.bool)
    assert [spec.shape.as_list() for spec in specs["weights"]] == [[5], []]


def test_in_the_first_round_a_client_reads_the_servers_weights():
    zeros = weights_at(np.zeros(6)).trainable
    row = {"seen": tf.constant(False), "weights": zeros}
    found = remembered_weights.read(row, weights_at(), ALL).trainable
    np.testing.assert_array_equal(vector(found), START)


def test_later_it_reads_the_weights_that_it_ended_with():
    own = weights_at(START + 1)
    row = remembered_weights.row(own, ALL)
    found = remembered_weights.read(row, weights_at(), ALL).trainable
    np.testing.assert_array_equal(vector(found), START + 1)


def test_moving_statistics_are_remembered_too():
    model = build_tiny_nn((2, 2, 1), num_classes=2, seed=0)
    part = remembered_weights.everything(model)
    specs = remembered_weights.specs(model, part)
    trainable, statistics = model.initial_weights
    assert [tuple(spec.shape) for spec in specs["statistics"]] == [
        w.shape for w in statistics
    ]
    server = local_model.Weights(*map(_constants, model.initial_weights))
    own = local_model.Weights(
        _constants(w + 1 for w in trainable), _constants(w + 2 for w in statistics)
    )
    row = remembered_weights.row(own, part)
    found = remembered_weights.read(row, server, part)
    np.testing.assert_array_equal(found.non_trainable[0], statistics[0] + 2)
    unseen = row | {"seen": tf.constant(False)}
    found = remembered_weights.read(unseen, server, part)
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
