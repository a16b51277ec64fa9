"""A client's report: what it weighs by, and that what does not count is zero."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.one_client import MODEL, START, vector
from tff_algos.client_works import client_report
from tff_algos.hyperparameters import HyperparameterError
from tff_algos.models import local_model

NUM_EXAMPLES = tff.learning.ClientWeighting.NUM_EXAMPLES
UNIFORM = tff.learning.ClientWeighting.UNIFORM


def report(weighting=NUM_EXAMPLES, num_examples=7, last=2.0, also_finite=0.0):
    """The report of an update of ones, whose last number is `last`."""
    view = local_model.create(MODEL)
    return client_report.report(
        view,
        tff.learning.models.ModelWeights(*MODEL.initial_weights),
        (tf.ones(5, tf.float64), tf.constant(last, tf.float64)),
        weighting,
        tf.constant(num_examples, tf.int64),
        view.initial_metrics(),
        tf.constant(also_finite),
        non_trainable=(),
    )


@pytest.mark.parametrize(("weighting", "weight"), [(NUM_EXAMPLES, 7.0), (UNIFORM, 1.0)])
def test_a_client_weighs_by_its_examples_or_as_all_do(weighting, weight):
    found = report(weighting)
    np.testing.assert_array_equal(vector(found.result.update), [1, 1, 1, 1, 1, 2])
    assert found.result.update_weight == weight
    assert found.counts_in and not any(count for count in found.counts.values())


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({"last": np.nan}, [1, 0]),
        ({"also_finite": np.inf}, [1, 0]),
        ({"num_examples": 0}, [0, 1]),
    ],
)
@pytest.mark.parametrize("weighting", [NUM_EXAMPLES, UNIFORM])
def test_a_client_that_does_not_count_reports_zeros(weighting, changes, counts):
    found = report(weighting, **changes)
    np.testing.assert_array_equal(vector(found.result.update), np.zeros_like(START))
    assert found.result.update_weight == 0.0 and not found.counts_in
    assert [int(count) for count in found.counts.values()] == counts


def test_a_weighting_of_another_kind_is_refused():
    with pytest.raises(
        HyperparameterError, match="client_weighting='uniform' .*ClientW"
    ):
        report("uniform")


@pytest.mark.parametrize(("weighting", "weight"), [(NUM_EXAMPLES, 3.0), (UNIFORM, 1.0)])
def test_a_number_of_examples_replaces_that_of_those_processed(weighting, weight):
    told = report(weighting).with_num_examples(tf.constant(3, tf.int64))
    assert told.result.update_weight == weight
    excluded = report(weighting, last=np.nan).with_num_examples(tf.constant(3))
    assert excluded.result.update_weight == 0.0


def test_another_weight_is_zero_for_a_client_that_does_not_count():
    weight = tf.constant(0.25)
    assert report().with_weight(weight).result.update_weight == 0.25
    assert report(last=np.inf).with_weight(weight).result.update_weight == 0.0
