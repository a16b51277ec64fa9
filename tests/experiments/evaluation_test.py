"""Evaluation: of chosen clients, by client and pooled, and who improves."""

import functools

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import problems, tiny_task
from tff_algos.experiments import evaluation

SGD = tff.learning.optimizers.build_sgdm
TASK = tiny_task.make()
START = tff.learning.models.ModelWeights(*TASK.model.initial_weights)
CLIENTS = ("0", "1", "2")

IDS = [f"client {n}" for n in range(50)]


def test_the_evaluated_clients_are_a_fixed_sample_or_all():
    chosen = evaluation.choose_clients(IDS, 7, seed=3)
    assert len(chosen) == 7 and chosen == evaluation.choose_clients(IDS, 7, seed=3)
    assert chosen == sorted(chosen, key=IDS.index)
    for all_of_them in (0, 50, 99):
        assert evaluation.choose_clients(IDS, all_of_them, seed=3) == IDS


def _result(name, num_test, *accuracy):
    return evaluation.ClientResult(
        client_id=name,
        num_train_examples=10,
        num_test_examples=num_test,
        accuracy=accuracy,
        loss=accuracy,
    )


def test_personalization_means_are_uniform_over_clients_that_have_a_test():
    results = [
        _result("a", 1000, 0.2, 0.4),
        _result("b", 1, 0.6, 1.0),
        _result("nobody", 0, 0.0, 0.0),
    ]
    summary = evaluation.personalization_summary(results)
    assert summary["initial_accuracy"] == pytest.approx(0.4)
    assert summary["personalized_accuracy"] == pytest.approx(0.7)
    assert summary["personalized_accuracy_std"] == pytest.approx(0.3)
    assert summary["num_clients"] == 2
    assert summary["num_clients_without_test"] == 1
    np.testing.assert_allclose(summary["accuracy_by_epoch"], [0.4, 0.7])


def test_clients_without_test_examples_have_no_accuracy():
    def examples(client_id, split):
        x, y = TASK.examples(client_id, split)
        return (x[:0], y[:0]) if (client_id, split) == ("1", "test") else (x, y)

    task = attrs.evolve(TASK, examples=examples)
    personalize = evaluation.build_personalize_fn(
        task, SGD(0.1), num_epochs=1, batch_size=4
    )
    ((tested, untested),) = personalize(START, ["0", "1"])
    own = evaluation.build_own_models_fn(task, lambda weights, _: weights)
    tested, untested = own(START, [tested, untested])
    for result, is_nan in ((tested, False), (untested, True)):
        found = (*result.accuracy, *result.loss, result.own_accuracy, result.own_loss)
        assert set(np.isnan(found)) == {is_nan}


def test_deciles_are_means_of_the_worst_and_the_best_tenth():
    results = [_result(str(n), 1, 0.0, n / 20) for n in range(20)]
    summary = evaluation.personalization_summary(results)
    assert summary["personalized_accuracy_worst_decile"] == pytest.approx(0.5 / 20)
    assert summary["personalized_accuracy_best_decile"] == pytest.approx(18.5 / 20)


def random_weights(seed):
    rng = np.random.default_rng(seed)
    trainable = tuple(
        rng.normal(size=w.shape).astype(np.float32) for w in START.trainable
    )
    return tff.learning.models.ModelWeights(trainable, ())


def losses_and_hits(weights, examples):
    """Softmax regression in float64: each example's loss, and whether it is right."""
    kernel, bias = (np.asarray(w, np.float64) for w in weights.trainable)
    x, y = examples
    logits = x @ kernel + bias
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
    return losses, np.argmax(logits, axis=1) == y


def mean_loss(weights, client_id):
    return np.mean(losses_and_hits(weights, TASK.examples(client_id, "train"))[0])


def test_a_distribution_is_uniform_over_clients():
    values = np.arange(20) ** 2 / 400
    found = evaluation.distribution(np.random.default_rng(0).permutation(values))
    assert found == pytest.approx(
        {
            "mean": np.mean(values),
            "std": np.sqrt(np.mean((values - np.mean(values)) ** 2)),
            "worst_decile": (0 + 1) / 800,
            "best_decile": (18**2 + 19**2) / 800,
        }
    )


def test_a_decile_holds_one_client_at_least():
    assert evaluation.distribution([0.5, 0.25, 1.0]) == pytest.approx(
        {
            "mean": 1.75 / 3,
            "std": np.std([0.5, 0.25, 1.0]),
            "worst_decile": 0.25,
            "best_decile": 1.0,
        }
    )


def test_of_nobody_there_is_no_distribution():
    assert evaluation.distribution([]) == {}


@functools.cache
def evaluate_clients():
    return evaluation.build_client_evaluation(TASK.model)


def test_clients_are_evaluated_by_themselves_and_pooled():
    ids, weights = ["3", "0", "7", "5"], random_weights(0)
    examples = [TASK.examples(client_id, "test") for client_id in ids]
    x, y = examples[0]
    # The last client has no examples; batches of 4 leave smaller ones.
    examples.append((x[:0], y[:0]))
    data = [tf.data.Dataset.from_tensor_slices(each).batch(4) for each in examples]
    found = evaluate_clients()(weights, data)

    parts = [losses_and_hits(weights, each) for each in examples[:-1]]
    sizes = [len(losses) for losses, _ in parts]
    assert len(set(sizes)) > 1
    by_client = found["by_client"]
    np.testing.assert_array_equal(by_client["num_examples"], [*sizes, 0])
    expected = [np.mean(losses) for losses, _ in parts]
    assert by_client["mean_loss"].dtype == np.float64
    np.testing.assert_allclose(by_client["mean_loss"], [*expected, 0], rtol=1e-6)
    np.testing.assert_allclose(by_client["loss"], [*expected, 0], rtol=1e-6)
    expected = [np.mean(hits) for _, hits in parts]
    np.testing.assert_allclose(by_client["accuracy"], [*expected, 0], rtol=1e-6)

    losses, hits = (np.concatenate(each) for each in zip(*parts, strict=True))
    assert found["pooled"]["num_examples"] == sum(sizes)
    assert found["pooled"]["loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert found["pooled"]["accuracy"] == pytest.approx(np.mean(hits), rel=1e-6)


def test_models_are_evaluated_as_they_are_used_and_not_as_they_are_trained():
    model = problems.linear_model()

    @tf.function
    def predict(weights, x, training):
        output = model.predict_on_batch(weights, x, training=training)
        return output + 100.0 if training else output

    noisy = tff.learning.models.FunctionalModel(
        initial_weights=model.initial_weights,
        predict_on_batch_fn=predict,
        loss_fn=model.loss,
        metrics_fns=problems.LOSS_METRICS,
        input_spec=model.input_spec,
    )
    (client,) = problems.clients(sizes=(5,))
    weights = tff.learning.models.ModelWeights(*model.initial_weights)
    found = evaluation.build_client_evaluation(noisy)(weights, [client.batches(2)])
    start = problems.initial_vector()
    residual = client.x @ start[:-1] + start[-1] - client.y
    # Of a mean in float64 not even the last digits are lost.
    np.testing.assert_allclose(
        found["by_client"]["mean_loss"], [np.mean(residual**2) / 2], rtol=1e-14
    )


def accuracy_of(weights, examples):
    return np.mean(losses_and_hits(weights, examples)[1])


@pytest.mark.parametrize("undivided", [False, True])
def test_metrics_are_of_the_test_set_and_the_distribution_of_the_clients(undivided):
    ids, weights = TASK.eval_client_ids, random_weights(1)
    own = [TASK.examples(client_id, "test") for client_id in ids]
    test_set = tuple(np.concatenate(arrays) for arrays in zip(*own, strict=True))
    task = TASK
    if undivided:
        rng = np.random.default_rng(2)
        x = rng.normal(size=(150, 2)).astype(np.float32)
        test_set = x, rng.integers(0, 3, 150).astype(np.int32)
        task = attrs.evolve(TASK, test_examples=test_set)
    found = evaluation.build_evaluate_fn(task, ids)(weights)
    losses, hits = losses_and_hits(weights, test_set)
    assert found["accuracy"] == pytest.approx(np.mean(hits), rel=1e-6)
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert found["num_examples"] == len(hits)
    expected = evaluation.distribution([accuracy_of(weights, each) for each in own])
    for name, value in expected.items():
        assert found[f"client_accuracy_{name}"] == pytest.approx(value, rel=1e-6)


def without_examples(client_id, split):
    """The task in which a client has none of a split."""

    def examples(asked, asked_split):
        x, y = TASK.examples(asked, asked_split)
        if asked == client_id and asked_split == split:
            return x[:0], y[:0]
        return x, y

    return attrs.evolve(TASK, examples=examples)


def test_clients_without_a_test_have_no_part_in_the_distribution():
    weights = random_weights(1)
    task = without_examples("9", "test")
    found = evaluation.build_evaluate_fn(task, ["8", "9", "10"])(weights)
    tested = [accuracy_of(weights, TASK.examples(k, "test")) for k in ("8", "10")]
    assert found["client_accuracy_mean"] == pytest.approx(np.mean(tested), rel=1e-6)
    assert found["client_accuracy_worst_decile"] == pytest.approx(min(tested), rel=1e-6)


@functools.cache
def improvement():
    return evaluation.build_improvement_fn(TASK)


def share(client_ids, before, after):
    return improvement()(client_ids, before, after)["improved_clients"]


@pytest.mark.parametrize("seed", [3, 4])
def test_the_share_that_improves_is_that_of_clients_whose_loss_does_not_rise(seed):
    ids = TASK.train_client_ids
    before, after = random_weights(seed), random_weights(seed + 10)
    falls = [mean_loss(after, k) < mean_loss(before, k) for k in ids]
    assert 0 < np.mean(falls) < 1
    assert share(ids, before, after) == np.mean(falls)


def test_clients_without_training_examples_do_not_count():
    task = without_examples("2", "train")
    before, after = random_weights(3), random_weights(13)
    falls = [mean_loss(after, k) < mean_loss(before, k) for k in ("0", "1", "3")]
    found = evaluation.build_improvement_fn(task)(["0", "1", "2", "3"], before, after)
    assert found == {"improved_clients": pytest.approx(np.mean(falls))}


def test_a_loss_that_is_no_number_is_no_improvement():
    broken = tff.learning.models.ModelWeights(
        tuple(np.full_like(w, np.nan) for w in START.trainable), ()
    )
    assert share(["0", "1"], START, broken) == 0.0


@functools.cache
def full_batch_step(server_rate):
    """The weights after a round of FedMGDA+ of one full-batch step on each client."""
    process = tff_algos.build_fed_mgda_plus(TASK.model, SGD(0.1), SGD(server_rate))
    data = [
        tf.data.Dataset.from_tensor_slices(TASK.examples(k, "train")).batch(100)
        for k in CLIENTS
    ]
    state = process.next(process.initialize(), data).state
    return process.get_model_weights(state)


def test_a_small_full_batch_step_of_fedmgda_plus_improves_all_clients():
    after = full_batch_step(0.1)
    moved = np.linalg.norm(after.trainable[0] - START.trainable[0])
    assert moved > 0.01
    assert share(CLIENTS, START, after) == 1.0


def test_a_step_of_length_zero_leaves_nobody_worse_off():
    after = full_batch_step(0.0)
    np.testing.assert_array_equal(after.trainable[0], START.trainable[0])
    assert share(CLIENTS, START, after) == 1.0


def test_a_step_the_other_way_leaves_all_clients_worse_off():
    after = full_batch_step(0.1)
    away = tff.learning.models.ModelWeights(
        tuple(
            2 * start - w
            for start, w in zip(START.trainable, after.trainable, strict=True)
        ),
        (),
    )
    assert share(CLIENTS, START, away) == 0.0
