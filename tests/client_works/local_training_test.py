"""Local training: SGD in NumPy, proximal and clipped gradients, decayed rates."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.one_client import CLIENT, MODEL, RATE, START, vector, weights_at
from tff_algos.client_works import local_training
from tff_algos.hyperparameters import HyperparameterError
from tff_algos.models import local_model

SGD = tff.learning.optimizers.build_sgdm


def train(step_gradients=local_training.plain_gradients, **optimizer):
    optimizer = SGD(0.1, **optimizer)
    initial = weights_at()
    state = local_training.initialize_optimizer(optimizer, initial.trainable)
    return local_training.train(
        local_model.create(MODEL),
        optimizer,
        initial,
        state,
        CLIENT.batches(2, epochs=2),
        step_gradients,
    )


def test_training_takes_a_step_of_sgd_per_batch():
    final = train()
    expected, num_examples = CLIENT.local_sgd(START, RATE, batch_size=2, epochs=2)
    np.testing.assert_allclose(vector(final.weights.trainable), expected, rtol=1e-12)
    assert final.num_steps == 6 and final.num_examples == num_examples == 10


def test_a_proximal_gradient_pulls_to_the_anchor():
    anchor = START + 1.0
    pulled = local_training.proximal_gradients(weights_at(anchor).trainable, 0.5)
    expected, _ = CLIENT.local_sgd(
        START, RATE, batch_size=2, epochs=2, correction=lambda y: 0.5 * (y - anchor)
    )
    found = vector(train(pulled).weights.trainable)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_pull_of_strength_zero_is_plain_training():
    anchor = weights_at().trainable
    gradients = local_training.proximal_gradients(anchor, 0.0)
    assert gradients is local_training.plain_gradients


@pytest.mark.parametrize(
    ("largest", "expected"),
    [(None, [3.0, 4.0]), (10.0, [3.0, 4.0]), (1.0, [0.6, 0.8])],
)
def test_gradients_are_shortened_to_a_norm_over_all_tensors(largest, expected):
    gradients = (tf.constant([3.0]), tf.constant(4.0))
    clipped = local_training.clip_by_norm(gradients, largest)
    np.testing.assert_allclose(np.append(*clipped), expected, rtol=1e-6)


def test_gradients_of_half_precision_are_shortened_too():
    gradients = (tf.constant([300.0], tf.float16), tf.constant(400.0, tf.float16))
    clipped = local_training.clip_by_norm(gradients, 10.0)
    assert [each.dtype for each in clipped] == [tf.float16] * 2
    np.testing.assert_allclose(np.append(*clipped), [6.0, 8.0], rtol=1e-3)


@pytest.mark.parametrize(("decay", "expected"), [(1.0, 0.5), (0.5, 0.0625)])
def test_a_rate_decays_by_the_power_of_the_round(decay, expected):
    optimizer = SGD(0.5)
    state = local_training.initialize_optimizer(optimizer, weights_at().trainable)
    decayed = local_training.decay_learning_rate(
        optimizer, state, decay, tf.constant(3)
    )
    assert float(optimizer.get_hparams(decayed)["learning_rate"]) == expected


@pytest.mark.parametrize("decay", [0.0, 1.5])
def test_a_decay_out_of_range_is_named(decay):
    with pytest.raises(HyperparameterError, match=f"decay={decay}.*in \\(0, 1\\]"):
        local_training.build_local_update(SGD(0.1), client_learning_rate_decay=decay)


def test_the_rate_of_a_schedule_does_not_decay_as_well():
    optimizer = tff.learning.optimizers.schedule_learning_rate(
        tff.learning.optimizers.build_sgdm(0.1), lambda step: 0.1 if step < 5 else 0.01
    )
    local_training.build_local_update(optimizer)
    with pytest.raises(
        HyperparameterError, match="^client_learning_rate_decay=0.5 cannot be used with"
    ):
        local_training.build_local_update(optimizer, client_learning_rate_decay=0.5)


def test_gradients_of_several_types_are_clipped_together():
    gradients = (tf.constant([3.0, 0.0]), tf.constant(4.0, tf.float64))
    clipped = local_training.clip_by_norm(gradients, 2.5)
    assert [each.dtype for each in clipped] == [tf.float32, tf.float64]
    np.testing.assert_allclose(np.append(*clipped), [1.5, 0.0, 2.0], rtol=1e-6)
