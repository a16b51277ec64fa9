"""Metrics of the models: against NumPy, and in TFF's own algorithms."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks.models import image, metrics, text
from tests.testing import task_models
from tests.testing.speed import some_fast
from tff_algos.models.variable_model import FunctionalVariableModel


def _updated(classification, batches):
    initialize, update, finalize = classification.metrics_fns()
    state = initialize()
    for logits, labels, weight in batches:
        loss = classification.loss(logits, labels, weight)
        output = tff.learning.models.BatchOutput(
            loss=loss, predictions=logits, num_examples=tf.shape(labels)[0]
        )
        state = update(state, labels, output, weight)
    return finalize(state)


def _log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_token_metrics_equal_numpy():
    rng = np.random.default_rng(0)
    logits = [rng.normal(size=(n, 5, 7)).astype(np.float32) for n in (3, 2)]
    labels = [rng.integers(0, 7, (n, 5)).astype(np.int32) for n in (3, 2)]
    got = _updated(
        metrics.Classification(padding_id=0),
        [(tf.constant(a), tf.constant(b), None) for a, b in zip(logits, labels)],
    )
    logits, labels = np.concatenate(logits), np.concatenate(labels)
    keep = labels != 0
    losses = -np.take_along_axis(_log_softmax(logits), labels[..., None], -1)[..., 0]
    assert list(got) == ["loss", "accuracy", "num_examples", "num_batches"]
    np.testing.assert_allclose(got["loss"], losses[keep].mean(), rtol=1e-5)
    np.testing.assert_allclose(
        got["accuracy"], (logits.argmax(-1) == labels)[keep].mean(), rtol=1e-6
    )
    assert (got["num_examples"], got["num_batches"]) == (5, 2)
    assert got["num_examples"].dtype == got["num_batches"].dtype == tf.int64


def test_unscored_targets_count_in_the_loss_alone():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4, 5, 7)).astype(np.float32)
    labels = rng.integers(0, 7, (4, 5)).astype(np.int32)
    weights = np.array([1.0, 2.0, 0.0, 1.0], np.float32)
    got = _updated(
        metrics.Classification(padding_id=0, unscored_ids=(5, 6)),
        [(tf.constant(logits), tf.constant(labels), tf.constant(weights))],
    )
    losses = -np.take_along_axis(_log_softmax(logits), labels[..., None], -1)[..., 0]
    counts = weights[:, None] * (labels != 0)
    scored = counts * (labels < 5)
    assert 0 < scored.sum() < counts.sum()
    np.testing.assert_allclose(
        got["loss"], np.average(losses, weights=counts), rtol=1e-5
    )
    correct = logits.argmax(-1) == labels
    np.testing.assert_allclose(
        got["accuracy"], np.average(correct, weights=scored), rtol=1e-6
    )
    assert got["num_examples"] == 3


def test_the_word_model_scores_no_special_words():
    model = text.build_word_model(9, 3, unscored_ids=(7, 8))
    tokens = tf.constant([[1, 7, 8], [2, 3, 0]])
    # Wrong where it does not count, and in one of three words.
    guesses = tf.constant([[1, 1, 1], [2, 4, 4]])
    logits = tf.one_hot(guesses, 9)
    output = tff.learning.models.BatchOutput(
        loss=model.loss(logits, tokens), predictions=logits, num_examples=2
    )
    state = model.update_metrics_state(model.initialize_metrics_state(), tokens, output)
    np.testing.assert_allclose(state["accuracy"], (2.0, 3.0))
    assert state["loss"][1] == 5.0


def test_metrics_over_nothing_are_zero():
    padding = (tf.zeros([2, 3, 4]), tf.zeros([2, 3], tf.int32), None)
    for batches in ([], [padding]):
        got = _updated(metrics.Classification(padding_id=0), batches)
        assert got["loss"] == got["accuracy"] == 0
        assert got["num_examples"] == 2 * len(batches)


def test_examples_of_weight_zero_leave_no_trace():
    logits = tf.random.stateless_normal([4, 3], seed=(1, 2))
    labels = tf.constant([0, 1, 2, 0])
    alone = _updated(metrics.Classification(), [(logits[:2], labels[:2], None)])
    masked = _updated(
        metrics.Classification(),
        [
            (logits, labels, tf.constant([1.0, 1.0, 0.0, 0.0])),
            (logits, labels, tf.zeros([4])),
        ],
    )
    for name, value in alone.items():
        np.testing.assert_allclose(masked[name], value, rtol=1e-6, err_msg=name)


def _clients(task):
    datasets = []
    for seed, num_examples in ((0, 5), (1, 3)):
        if task == "image":
            examples = task_models.images(seed, num_examples)
        else:
            examples = task_models.characters(seed, num_examples, length=6)
        datasets.append(tf.data.Dataset.from_tensor_slices(examples).batch(2))
    return datasets


def _expected_metrics(model, datasets):
    """The metrics of the initial weights, by a plain loop."""
    state = model.initialize_metrics_state()
    weights = (task_models.constants(model), ())
    for x, y in (batch for dataset in datasets for batch in dataset):
        logits = model.predict_on_batch(weights, x, training=False)
        output = tff.learning.models.BatchOutput(
            loss=model.loss(logits, y), predictions=logits, num_examples=len(x)
        )
        state = model.update_metrics_state(state, labels=y, batch_output=output)
    return model.finalize_metrics(state)


@pytest.mark.parametrize("task", some_fast(["image", "text"], ["image"]))
def test_metrics_and_training_in_tffs_own_algorithms(task):
    if task == "image":
        model = image.build_emnist_model("cnn_dropout", True, seed=0)
    else:
        model = text.build_lstm_model(sequence_length=6, seed=0)
    datasets = _clients(task)
    expected = _expected_metrics(model, datasets)
    model_fns = collections.OrderedDict(
        functional=model,
        variable=lambda: FunctionalVariableModel(model),
        tff=lambda: tff.learning.models.model_from_functional(model),
    )
    sgd = tff.learning.optimizers.build_sgdm(0.1)
    trained = {}
    for name, model_fn in model_fns.items():
        evaluation = tff.learning.algorithms.build_fed_eval(model_fn)
        state = evaluation.initialize()
        measured = evaluation.next(state, datasets).metrics
        measured = measured["client_work"]["eval"]["current_round_metrics"]
        if name == "tff":
            if task == "image":
                np.testing.assert_allclose(
                    measured["loss"], expected["loss"], rtol=1e-5
                )
        else:
            assert set(measured) == set(expected)
            for metric, value in expected.items():
                np.testing.assert_allclose(measured[metric], value, rtol=1e-5)

        process = tff.learning.algorithms.build_weighted_fed_avg(
            model_fn, client_optimizer_fn=sgd
        )
        output = process.next(process.initialize(), datasets)
        train_metrics = output.metrics["client_work"]["train"]
        if name != "tff":
            assert train_metrics["num_examples"] == 8
            assert train_metrics["num_batches"] == 5
        trained[name] = process.get_model_weights(output.state).trainable
    for other in ("variable", "tff"):
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
            tuple(trained["functional"]),
            tuple(trained[other]),
        )
