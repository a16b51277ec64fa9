"""What holds for every model: blocks, features, modes."""

import functools

import attrs
import numpy as np
import pytest
import tensorflow as tf

from tasks.models import (
    blocks,
    cifar,
    fashion,
    image,
    layers,
    linear,
    normalized,
    text,
)
from tests.testing import task_models
from tff_algos.models.block_model import EVALUATION, Block, chain

# Blocks, and the shape of the last one's input without the examples' axis.
MODELS = {
    "cnn": (lambda: image.build_emnist_model("cnn", True, 1), 4, [512]),
    "cnn_dropout": (lambda: image.build_emnist_model("cnn_dropout", True, 1), 4, [128]),
    "cnn_dense_dropout": (
        lambda: image.build_emnist_model("cnn_dense_dropout", True, 1),
        4,
        [512],
    ),
    "2nn": (lambda: image.build_emnist_model("2nn", True, 1), 3, [200]),
    "cifar_cnn": (lambda: cifar.build_cifar_model("cnn", 10, 1), 5, [192]),
    "cifar_cnn_lrn": (lambda: cifar.build_cifar_model("cnn_lrn", 10, 1), 5, [192]),
    "fashion": (lambda: fashion.build_fashion_model(1), 4, [50]),
    "linear": (lambda: linear.build_linear_model(7, 3), 1, [7]),
    "lstm": (lambda: text.build_lstm_model(11, 4, 1), 4, [4, 256]),
    "gru": (lambda: text.build_gru_model(11, 4, 1, 5, 6), 3, [4, 6]),
    "word": (lambda: text.build_word_model(13, 3, 1), 3, [3, 670]),
    "tiny_nn": (lambda: normalized.build_tiny_nn((4, 4, 1), 5, 1), 3, [100]),
    "lenet": (lambda: normalized.build_lenet(10, 1), 4, [512]),
    "vgg11": (lambda: normalized.build_vgg11(10, 1), 6, [512]),
    "resnet20": (
        lambda: normalized.build_resnet20(10, 1, image_shape=(8, 8, 3)),
        5,
        [64],
    ),
}


@functools.cache
def _built(name):
    build, num_blocks, _ = MODELS[name]
    model = build()
    return model, task_models.moved_weights(model, seed=2), num_blocks


def _close(got, expected):
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        got,
        expected,
    )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_every_level_leads_to_the_predictions(name, training):
    model, weights, num_blocks = _built(name)
    x, _ = task_models.examples(model, seed=3)
    mode = model.mode(weights, x, training)
    whole = model.apply_blocks(weights, x, mode)
    assert model.num_blocks == len(whole.inputs) == num_blocks
    _close(whole.output, model.predict_on_batch(weights, x, training=training))
    for start, level in enumerate(whole.inputs):
        part = model.apply_blocks(weights, level, mode, start=start)
        _close(part.output, whole.output)


@pytest.mark.parametrize("name", MODELS)
def test_features_are_what_the_classifier_takes(name):
    model, weights, _ = _built(name)
    x, _ = task_models.examples(model, seed=3)
    result = model.apply_blocks(weights, x, EVALUATION)
    shape = MODELS[name][2]
    assert result.features.shape[1:].as_list() == shape
    assert len(np.unique(result.features)) > 10
    if name == "linear":
        assert result.features is x


@pytest.mark.parametrize("name", MODELS)
def test_features_have_a_static_shape_in_a_graph(name):
    model, weights, _ = _built(name)

    @tf.function(input_signature=[model.input_spec[0]])
    def features_shape(x):
        result = model.apply_blocks(weights, x, model.mode(weights, x))
        assert result.features.shape[1:].as_list() == MODELS[name][2]
        return tf.shape(result.features)

    x, _ = task_models.examples(model, seed=3)
    assert features_shape(x).numpy().tolist() == [4, *MODELS[name][2]]


WITH_DROPOUT = {
    "cnn_dropout",
    "cnn_dense_dropout",
    "cifar_cnn",
    "fashion",
    "lenet",
    "vgg11",
}


@pytest.mark.parametrize("name", MODELS)
def test_masks_are_made_from_the_batch_and_weights_of_the_first_and_last_block(name):
    model, weights, _ = _built(name)
    x, _ = task_models.examples(model, seed=3)
    mode = model.mode(weights, x)
    assert mode.batch_statistics
    assert model.mode(weights, x, training=False) is EVALUATION
    if name not in WITH_DROPOUT:
        assert mode.dropout_seed is None
        return
    first = model.mask_of_blocks(0, 1).trainable.count(True) - 1
    few = tf.concat([weights[0][first], weights[0][-1]], axis=0)
    assert mode.dropout_seed == layers.fingerprint(few, x)
    frozen = attrs.evolve(mode, batch_statistics=False)
    masked, plain = (
        model.apply_blocks(weights, x, one).output for one in (frozen, EVALUATION)
    )
    assert np.abs(masked - plain).max() > 0.01


@pytest.mark.parametrize("name", MODELS)
def test_modes_differ_only_where_a_model_has_dropout_or_batch_norm(name):
    model, weights, _ = _built(name)
    x, _ = task_models.examples(model, seed=3)
    training, plain = (
        model.predict_on_batch(weights, x, training=training).numpy()
        for training in (True, False)
    )
    same = name not in WITH_DROPOUT | {"tiny_nn", "resnet20"}
    assert np.array_equal(training, plain) is same


@pytest.mark.parametrize("name", ["tiny_nn", "lenet", "resnet20"])
def test_statistics_move_with_training_alone(name):
    model, weights, _ = _built(name)
    x, _ = task_models.examples(model, seed=3)
    moved = model.apply_blocks(weights, x, model.mode(weights, x)).non_trainable
    frozen = model.apply_blocks(weights, x, EVALUATION).non_trainable
    for old, new, same in zip(weights[1], moved, frozen, strict=True):
        assert new.shape == old.shape and np.all(new != old)
        np.testing.assert_array_equal(same, old)


def test_frozen_weights_within_a_residual_block_stay_frozen():
    body = Block(
        apply=lambda trainable, non_trainable, x, mode: (
            non_trainable[0] * x,
            non_trainable,
        ),
        non_trainable=(np.ones(1, np.float32),),
        frozen=(True,),
    )
    assert chain(blocks.residual(body, tf.identity)).frozen == (True,)


def test_a_dropout_seed_changes_with_the_first_and_with_the_last_weights():
    """FedRep trains one part of a model at a time, on the same batches again."""
    rng = np.random.default_rng(0)
    parts = [
        blocks.FLATTEN,
        blocks.dense(rng, 3, 3),
        blocks.dense(rng, 3, 3),
        blocks.dense(rng, 3, 2),
    ]
    seed = blocks.dropout_seed(parts)
    weights, x = (
        chain(*parts).trainable,
        tf.constant(rng.normal(size=(4, 3)), tf.float32),
    )
    changed = [
        seed((*weights[:k], weights[k] + 1, *weights[k + 1 :]), x) != seed(weights, x)
        for k in range(6)
    ]
    assert changed == [False, True, False, False, False, True]
    # A projection head before the last block changes nothing.
    longer = (*weights[:4], *blocks.dense(rng, 3, 3).trainable, *weights[4:])
    assert seed(longer, x) == seed(weights, x)
    single = blocks.dropout_seed(parts[-1:])
    assert single(weights[4:], x) == layers.fingerprint(weights[-1], x)
