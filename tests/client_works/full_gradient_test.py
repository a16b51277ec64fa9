"""The gradient of a client's mean loss does not depend on its batches."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import problems
from tests.testing.one_client import (
    CLIENT,
    MODEL,
    START,
    run,
    vector,
    weights_at,
)
from tff_algos.client_works import full_gradient
from tff_algos.models import local_model


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_the_mean_gradient_is_that_of_all_examples(batch_size):
    found = full_gradient.mean_gradient(
        local_model.create(MODEL), weights_at(), CLIENT.batches(batch_size)
    )
    np.testing.assert_allclose(
        vector(found.gradient_sum), CLIENT.gradient(START), rtol=1e-12
    )
    assert found.num_examples == 5


def test_in_half_precision_the_sum_over_examples_does_not_overflow():
    # 10,000 examples, all with gradients of -8.
    shape = (10_000, problems.NUM_FEATURES)
    client = problems.Client(np.ones(shape), np.full(10_000, 8.25))
    model = problems.linear_model(np.float16)
    weights = local_model.Weights(
        (tf.zeros([problems.NUM_FEATURES], tf.float16), tf.constant(0.25, tf.float16)),
        (),
    )
    batches = client.batches(100).map(
        lambda x, y: (tf.cast(x, tf.float16), tf.cast(y, tf.float16))
    )
    found = full_gradient.mean_gradient(local_model.create(model), weights, batches)
    assert [each.dtype for each in found.gradient_sum] == [tf.float16] * 2
    np.testing.assert_array_equal(vector(found.gradient_sum), np.full(6, -8.0))


def test_no_examples_have_a_gradient_of_zero():
    nobody = problems.Client(np.zeros((0, problems.NUM_FEATURES)), np.zeros(0))
    found = full_gradient.mean_gradient(
        local_model.create(MODEL), weights_at(), nobody.batches()
    )
    np.testing.assert_array_equal(vector(found.gradient_sum), np.zeros(6))


def test_clients_report_their_gradients_and_weigh_by_their_examples():
    work = full_gradient.build_full_gradient_client_work(MODEL)
    other = problems.Client(CLIENT.x[:3], CLIENT.y[:3])
    output = run(work, CLIENT.batches(2), other.batches(2))
    for result, client in zip(output.result, (CLIENT, other), strict=True):
        np.testing.assert_allclose(
            vector(result.update), client.gradient(START), rtol=1e-12
        )
    assert [result.update_weight for result in output.result] == [5.0, 3.0]


def test_under_uniform_weights_clients_weigh_alike():
    work = full_gradient.build_full_gradient_client_work(
        MODEL, client_weighting=tff.learning.ClientWeighting.UNIFORM
    )
    (result,) = run(work, CLIENT.batches(2)).result
    assert result.update_weight == 1.0
