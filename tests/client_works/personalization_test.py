"""Personalization evaluation: X33 and a hand-computable fine-tuning."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import problems

SGD = tff.learning.optimizers.build_sgdm
TRAIN = problems.clients(sizes=(4, 6, 5), seed=1)
TEST = problems.clients(sizes=(3, 7, 2), seed=2)


def unbatched(client):
    slices = (client.x.astype(np.float32), client.y.astype(np.float32))
    return tf.data.Dataset.from_tensor_slices(slices)


def client_input(train, test):
    return collections.OrderedDict(
        train_data=unbatched(train), test_data=unbatched(test)
    )


INPUT = [client_input(*pair) for pair in zip(TRAIN, TEST, strict=True)]


def evaluate(optimizer=None, clients=INPUT, **kwargs):
    computation = tff_algos.build_personalization_eval(
        problems.linear_model(np.float32), optimizer or SGD(0.1), **kwargs
    )
    weights = tff_algos.build_fed_sgd(problems.linear_model(np.float32), SGD(0.1))
    weights = weights.get_model_weights(weights.initialize())
    before = [np.array(leaf) for leaf in tf.nest.flatten(weights)]
    result = computation(weights, clients)
    for left, right in zip(before, tf.nest.flatten(weights), strict=True):
        np.testing.assert_array_equal(left, right)
    return result


def loss(client, vector):
    return np.mean((client.x @ vector[:-1] + vector[-1] - client.y) ** 2) / 2


def test_each_epoch_is_an_epoch_of_sgd_on_the_client():
    # Batches of all examples, so that the order of the examples does not matter.
    curves = evaluate(num_epochs=3, batch_size=100)["personalized_metrics"]["loss"]
    start = problems.initial_vector(np.float32)
    for row, train, test in zip(curves, TRAIN, TEST, strict=True):
        expected = [
            loss(test, train.local_sgd(start, 0.1, epochs=epochs)[0])
            for epochs in range(4)
        ]
        np.testing.assert_allclose(row, expected, rtol=1e-5)


def test_no_epochs_leave_the_initial_metrics_to_the_bit():
    result = evaluate(num_epochs=0)
    initial = result["baseline_metrics"]["loss"]
    np.testing.assert_array_equal(
        result["personalized_metrics"]["loss"], initial[:, np.newaxis]
    )


def test_learning_rate_zero_leaves_the_initial_metrics_to_the_bit():
    result = evaluate(SGD(0.0), num_epochs=2)
    curves = result["personalized_metrics"]["loss"]
    for epoch in range(3):
        np.testing.assert_array_equal(
            curves[:, epoch], result["baseline_metrics"]["loss"]
        )


def test_the_optimizers_state_goes_on_from_epoch_to_epoch():
    curves = evaluate(SGD(0.1, momentum=0.5), num_epochs=2, batch_size=100)
    train, test = TRAIN[0], TEST[0]
    vector, velocity = problems.initial_vector(np.float32), 0.0
    for _ in range(2):
        velocity = 0.5 * velocity + train.gradient(vector)
        vector = vector - 0.1 * velocity
    assert curves["personalized_metrics"]["loss"][0][2] == pytest.approx(
        loss(test, vector), rel=1e-5
    )


def test_a_client_without_training_examples_keeps_its_initial_metrics():
    nobody = problems.Client(np.zeros((0, problems.NUM_FEATURES)), np.zeros(0))
    result = evaluate(clients=[client_input(nobody, TEST[0])], num_epochs=2)
    curve = result["personalized_metrics"]["loss"][0]
    np.testing.assert_array_equal(curve, [curve[0]] * 3)
    assert curve[0] == pytest.approx(
        loss(TEST[0], problems.initial_vector(np.float32)), rel=1e-5
    )


def test_small_batches_are_shuffled_alike_every_time():
    first = evaluate(num_epochs=2, batch_size=2)["personalized_metrics"]["loss"]
    again = evaluate(num_epochs=2, batch_size=2)["personalized_metrics"]["loss"]
    other = evaluate(num_epochs=2, batch_size=2, seed=5)["personalized_metrics"]["loss"]
    np.testing.assert_array_equal(first, again)
    assert np.max(np.abs(first - other)) > 1e-4


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_epochs", -1), ("batch_size", 0), ("max_num_clients", 0)],
)
def test_bad_arguments_are_named(name, value):
    with pytest.raises(ValueError, match=f"{name}={value} is not valid"):
        tff_algos.build_personalization_eval(
            problems.linear_model(np.float32), SGD(0.1), **{name: value}
        )
