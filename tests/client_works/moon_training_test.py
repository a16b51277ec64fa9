"""The model-contrastive loss, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import padded_text, problems
from tests.testing.remembering_cohorts import Training
from tff_algos import client_works
from tff_algos.client_works.moon_training import contrastive_losses
from tff_algos.models.block_model import BlockModel, layer

RNG = np.random.default_rng(0)
FEATURES, SERVER, PREVIOUS = RNG.normal(size=[3, 6, 4])


def cosines(left, right):
    norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    return np.sum(left * right, axis=-1) / norms


def formula(features, server, previous, contrastive_temperature):
    near = np.exp(cosines(features, server) / contrastive_temperature)
    far = np.exp(cosines(features, previous) / contrastive_temperature)
    return np.mean(-np.log(near / (near + far)))


def loss_and_gradient(
    features, server, previous, contrastive_temperature=0.5, dtype=tf.float64
):
    features, server, previous = (
        tf.constant(t, dtype) for t in (features, server, previous)
    )
    with tf.GradientTape() as tape:
        tape.watch(features)
        loss = tf.reduce_mean(
            contrastive_losses(features, server, previous, contrastive_temperature)
        )
    return loss.numpy(), tape.gradient(loss, features).numpy()


def test_the_inputs_of_a_single_layer_may_be_integers():
    table = np.array([[0.5, -1.0], [0.25, 2.0], [1.0, 0.0]], np.float32)
    model = BlockModel(
        [layer(lambda x, kernel: tf.gather(kernel, x), table)],
        loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(label, output)
        ),
        metrics_fns=problems.LOSS_METRICS,
        input_spec=(tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int32)),
    )
    batches = tf.data.Dataset.from_tensors(([0, 1, 2], [0, 1, 0]))

    def after_a_round(build, **settings):
        process = build(model, tff.learning.optimizers.build_sgdm(0.5), **settings)
        training = Training(process, 1)
        training.round({0: batches})
        return training.weights

    plain = after_a_round(tff_algos.build_moon, contrastive_strength=0.0)
    assert np.abs(plain - table.ravel()).max() > 0.01
    contrasted = after_a_round(tff_algos.build_moon, contrastive_strength=1.0)
    np.testing.assert_array_equal(contrasted, plain)


@pytest.mark.parametrize("contrastive_temperature", [0.1, 0.5, 3.0])
def test_it_is_the_mean_over_the_examples_of_the_papers_formula(
    contrastive_temperature,
):
    found, _ = loss_and_gradient(FEATURES, SERVER, PREVIOUS, contrastive_temperature)
    assert found == pytest.approx(
        formula(FEATURES, SERVER, PREVIOUS, contrastive_temperature)
    )


def test_its_gradient_is_that_of_finite_differences():
    _, gradient = loss_and_gradient(FEATURES, SERVER, PREVIOUS)
    for at in ((0, 0), (3, 2), (5, 3)):
        step = np.zeros_like(FEATURES)
        step[at] = 1e-6
        above = formula(FEATURES + step, SERVER, PREVIOUS, 0.5)
        below = formula(FEATURES - step, SERVER, PREVIOUS, 0.5)
        assert gradient[at] == pytest.approx((above - below) / 2e-6, rel=1e-5)


def test_between_equal_models_it_is_log_2_and_pulls_nowhere():
    loss, gradient = loss_and_gradient(FEATURES, SERVER, SERVER)
    assert loss == pytest.approx(np.log(2), rel=1e-12)
    np.testing.assert_array_equal(gradient, np.zeros_like(gradient))


def test_a_step_against_it_goes_to_the_server_and_away_from_the_past():
    _, gradient = loss_and_gradient(FEATURES, SERVER, PREVIOUS)
    after = FEATURES - 1e-3 * gradient
    assert np.mean(cosines(after, SERVER)) > np.mean(cosines(FEATURES, SERVER))
    assert np.mean(cosines(after, PREVIOUS)) < np.mean(cosines(FEATURES, PREVIOUS))


def test_what_follows_the_end_of_a_text_does_not_count():
    updates = padded_text.updates(
        client_works.build_contrastive_training_client_work,
        contrastive_strength=5.0,
        contrastive_temperature=0.5,
    )
    padded_text.assert_same_but_trained(*updates)


def test_the_length_of_features_does_not_matter():
    expected, _ = loss_and_gradient(FEATURES, SERVER, PREVIOUS)
    found, _ = loss_and_gradient(7 * FEATURES, 0.1 * SERVER, 1e3 * PREVIOUS)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_features_of_zero_are_as_far_from_both(dtype):
    features = FEATURES * [[0.0]] * 6
    loss, gradient = loss_and_gradient(features, SERVER, SERVER, dtype=dtype)
    assert loss == pytest.approx(np.log(2))
    assert np.all(np.isfinite(gradient))
    zeros = np.zeros_like(SERVER)
    loss, gradient = loss_and_gradient(FEATURES, zeros, zeros, dtype=dtype)
    assert loss == pytest.approx(np.log(2))
    np.testing.assert_array_equal(gradient, zeros)


def test_a_tiny_temperature_does_not_overflow():
    loss, gradient = loss_and_gradient(SERVER, -SERVER, SERVER, 1e-4, tf.float32)
    assert loss == pytest.approx(2e4, rel=1e-5)
    assert np.all(np.isfinite(gradient))


def test_in_half_precision_large_features_and_none_have_their_cosines():
    large = np.repeat([[300.0, 0, 0, 0]], 6, axis=0)
    found, gradient = loss_and_gradient(large, large, -large, dtype=tf.float16)
    assert found == pytest.approx(formula(large, large, -large, 0.5), rel=1e-3)
    assert np.all(np.isfinite(gradient))
    nothing = np.zeros_like(large)
    found, _ = loss_and_gradient(nothing, large, -large, dtype=tf.float16)
    assert found == pytest.approx(np.log(2), rel=1e-3)
