"""The parts of FedMLB's objective, against NumPy."""

import attrs
import numpy as np
import pytest
import tensorflow as tf

from tests.testing import block_problems, padded_text, problems
from tff_algos import client_works
from tff_algos.client_works import BranchLosses
from tff_algos.client_works.fed_mlb_training import divergences, hybrid_outputs
from tff_algos.models import local_model
from tff_algos.models.block_model import Block, BlockModel, layer
from tff_algos.models.local_model import Forward, Weights

CLIENT = block_problems.clients(sizes=(6,))[0]
RNG = np.random.default_rng(0)
LOGITS, OTHERS = 3 * RNG.normal(size=[2, 6, 3])


def kl(logits, others, distillation_temperature):
    target = block_problems.log_softmax(logits / distillation_temperature)
    other = block_problems.log_softmax(others / distillation_temperature)
    return np.mean(np.sum(np.exp(target) * (target - other), axis=-1))


@pytest.mark.parametrize("distillation_temperature", [0.5, 1.0, 4.0])
def test_the_divergence_is_of_the_local_distribution_from_the_hybrid_one(
    distillation_temperature,
):
    found = tf.reduce_mean(
        divergences(tf.constant(LOGITS), tf.constant(OTHERS), distillation_temperature)
    )
    assert found.numpy() == pytest.approx(
        kl(LOGITS, OTHERS, distillation_temperature), rel=1e-12
    )
    assert found.numpy() != pytest.approx(
        kl(OTHERS, LOGITS, distillation_temperature), rel=1e-3
    )


def test_the_divergence_moves_both_distributions():
    hybrid, local = tf.Variable(LOGITS), tf.Variable(OTHERS)
    with tf.GradientTape() as tape:
        found = divergences(hybrid, local, 1.0)
    gradients = tape.gradient(found, [hybrid, local])
    assert all(np.max(np.abs(g)) > 1e-3 for g in gradients)


def test_equal_distributions_have_no_divergence_and_no_gradient():
    # Logits that differ by a constant.
    hybrid, local = tf.Variable(LOGITS + 3), tf.Variable(LOGITS)
    with tf.GradientTape() as tape:
        found = divergences(hybrid, local, 2.0)
    np.testing.assert_allclose(found, 0, atol=1e-12)
    for gradient in tape.gradient(found, [hybrid, local]):
        np.testing.assert_allclose(gradient, np.zeros([6, 3]), atol=1e-12)


def forward_at(weights, batch):
    """The local model's view of the classifier, and its pass over a batch."""
    view = local_model.create(block_problems.block_model())
    found = []

    def keep(forward: Forward):
        found.append(forward)
        return forward.loss

    view.loss_gradients(weights, view.initial_metrics(), batch, objective=keep)
    return view, found[0]


def weights_of(vector):
    parts, start = [], 0
    for like in block_problems.initial_weights():
        parts.append(tf.constant(vector[start : start + like.size].reshape(like.shape)))
        start += like.size
    return Weights(tuple(parts), ())


def test_what_follows_the_end_of_a_text_does_not_count():
    updates = padded_text.updates(
        client_works.build_multi_level_training_client_work,
        losses=BranchLosses(distillation_weight=5.0),
    )
    padded_text.assert_same_but_trained(*updates)


def test_hybrid_outputs_are_the_servers_later_blocks_on_local_features():
    server = block_problems.initial_vector()
    local = server + 0.1 * RNG.normal(size=server.shape)
    batch = (tf.constant(CLIENT.x), tf.constant(CLIENT.label))
    view, forward = forward_at(weights_of(local), batch)
    found = hybrid_outputs(view, weights_of(server), forward)
    features = block_problems.levels(local, CLIENT.x)
    assert len(found) == 2
    for start, output in enumerate(found, start=1):
        expected = block_problems.levels(server, features[start - 1], start)[-1]
        np.testing.assert_allclose(output, expected, rtol=1e-12)


def test_where_local_and_server_are_one_the_objective_is_the_loss_alone():
    weights = weights_of(block_problems.initial_vector())
    batch = (tf.constant(CLIENT.x), tf.constant(CLIENT.label))
    view, forward = forward_at(weights, batch)
    losses = BranchLosses(
        local_loss_weight=0.5, hybrid_loss_weight=2.0, distillation_weight=3.0
    )
    found = losses.objective(view, weights, forward)
    np.testing.assert_allclose(found, 2.5 * forward.loss, rtol=1e-12)


def test_hybrid_outputs_take_the_servers_statistics_and_leave_them():
    def apply(trainable, non_trainable, x, mode):
        del trainable
        (mean,) = non_trainable
        center = tf.reduce_mean(x, axis=0) if mode.batch_statistics else mean
        return x - center, (center,)

    def centering(mean):
        return Block(apply=apply, non_trainable=(np.full(5, mean),))

    kernel = RNG.normal(size=[5, 3])
    model = BlockModel(
        [layer(tf.identity), centering(1.0), layer(tf.matmul, kernel)],
        loss_fn=block_problems.block_model().loss,
        metrics_fns=problems.LOSS_METRICS,
        input_spec=block_problems.block_model().input_spec,
    )
    view = local_model.create(model)
    server = Weights((tf.constant(kernel),), (tf.constant(np.full(5, 2.0)),))
    local = attrs.evolve(server, non_trainable=(tf.constant(np.full(5, 9.0)),))
    found = []

    def objective(forward):
        found.extend(hybrid_outputs(view, server, forward))
        return forward.loss

    batch = (tf.constant(CLIENT.x), tf.constant(CLIENT.label))
    result = view.loss_gradients(
        local, view.initial_metrics(), batch, objective=objective
    )
    np.testing.assert_allclose(found[0], (CLIENT.x - 2) @ kernel, rtol=1e-12)
    centered = CLIENT.x - np.mean(CLIENT.x, axis=0)
    np.testing.assert_allclose(found[1], centered @ kernel, rtol=1e-9, atol=1e-12)
    # The local pass's own.
    (statistics,) = result.non_trainable
    np.testing.assert_allclose(statistics, np.mean(CLIENT.x, axis=0), rtol=1e-12)
