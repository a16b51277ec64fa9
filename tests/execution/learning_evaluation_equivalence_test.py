"""Evaluation, reconstruction, clustering: in this process as on TFF's runtime."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tf_keras

from tests.testing import equivalence, problems
from tests.testing import learning_models as models

algorithms = tff.learning.algorithms
optimizers = tff.learning.optimizers

SIZES = ((6, 3, 9), (1, 12), (5, 0, 2, 7))


def rounds(cohorts):
    return [(cohort,) for cohort in cohorts]


@pytest.mark.parametrize(
    "model",
    [models.functional_model(), models.keras_model],
    ids=["functional", "keras"],
)
def test_evaluation_is_the_same(model):
    process = algorithms.build_fed_eval(model)
    outputs = equivalence.assert_same_rounds(
        process, *rounds(models.cohorts(*SIZES)), atol=1e-6
    )
    totals = [
        output.metrics["client_work"]["eval"]["total_rounds_metrics"]["num_examples"]
        for output in outputs
    ]
    assert totals == [36, 62, 90]


RECONSTRUCTION_OPTIMIZERS = {
    "tff": lambda: optimizers.build_sgdm(0.1),
    "keras": lambda: lambda: tf_keras.optimizers.legacy.SGD(0.1, momentum=0.5),
}


@pytest.mark.parametrize("kind", RECONSTRUCTION_OPTIMIZERS)
def test_reconstruction_is_the_same(kind):
    optimizer = RECONSTRUCTION_OPTIMIZERS[kind]
    process = algorithms.build_fed_recon(
        models.reconstruction_model,
        loss_fn=models.mean_squared_error,
        metrics_fn=models.keras_metrics,
        server_optimizer_fn=optimizers.build_sgdm(1.0, 0.9),
        client_optimizer_fn=optimizer(),
        reconstruction_optimizer_fn=optimizer(),
        dataset_split_fn=(
            tff.learning.models.ReconstructionModel.build_dataset_split_fn(
                recon_epochs=2, post_recon_epochs=2, split_dataset=True
            )
        ),
    )
    equivalence.assert_same_rounds(process, *rounds(models.cohorts(*SIZES)), atol=1e-6)


def test_evaluation_after_reconstruction_is_the_same():
    process = algorithms.build_fed_recon_eval(
        models.reconstruction_model,
        loss_fn=models.mean_squared_error,
        metrics_fn=models.keras_metrics,
        reconstruction_optimizer_fn=optimizers.build_sgdm(0.1),
    )
    equivalence.assert_same_rounds(process, *rounds(models.cohorts(*SIZES)), atol=1e-6)


def test_clusters_are_the_same():
    process = algorithms.build_fed_kmeans(3, (5,), random_seed=(1, 2))
    cohorts = [
        [
            tf.data.Dataset.from_tensor_slices(client.x.astype(np.float32))
            for client in problems.clients(sizes, seed)
        ]
        for seed, sizes in enumerate(SIZES)
    ]
    equivalence.assert_same_rounds(process, *rounds(cohorts))


@tf.function
def _mean_error(model, data):
    def add(sums, batch):
        output = model.forward_pass(batch, training=False)
        size = tf.cast(tf.shape(batch[1])[0], tf.float32)
        return sums[0] + output.loss * size, sums[1] + size

    total, count = data.batch(3).reduce((0.0, 0.0), add)
    return collections.OrderedDict(error=total / count, count=count)


def _fine_tune():
    optimizer = tf_keras.optimizers.legacy.SGD(0.1)

    @tf.function
    def fine_tune(model, train_data, test_data, context=None):
        del context
        variables = model.trainable_variables

        def step(count, batch):
            with tf.GradientTape() as tape:
                loss = model.forward_pass(batch, training=True).loss
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return count + 1

        steps = train_data.batch(2).reduce(0, step)
        metrics = _mean_error(model, test_data)
        metrics["steps"] = steps
        return metrics

    return fine_tune


def test_personalization_gives_the_same_of_each_client():
    evaluate = algorithms.build_personalization_eval_computation(
        models.keras_model,
        collections.OrderedDict(fine_tuned=_fine_tune),
        _mean_error,
        max_num_clients=3,
    )
    weights = tff.learning.models.ModelWeights.from_model(models.keras_model())
    weights = tf.nest.map_structure(lambda variable: variable.numpy(), weights)
    cohort = [
        collections.OrderedDict(
            train_data=client.batches(1, dtype=np.float32).unbatch(),
            test_data=client.batches(1, dtype=np.float32).unbatch(),
        )
        for client in problems.clients((6, 3, 9))
    ]
    expected = evaluate(weights, cohort)
    found = equivalence.call(equivalence.in_process(), evaluate, weights, cohort)
    # Clients are sampled, all three of them here, in an order that is random.
    order = np.argsort(found["baseline_metrics"]["count"])
    expected_order = np.argsort(expected["baseline_metrics"]["count"])
    equivalence.assert_same(
        tf.nest.map_structure(lambda column: column[order], found),
        tf.nest.map_structure(lambda column: column[expected_order], expected),
        atol=1e-6,
    )
    assert np.all(found["fine_tuned"]["error"] != found["baseline_metrics"]["error"])
    np.testing.assert_array_equal(found["fine_tuned"]["steps"][order], [2, 3, 5])


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure"])
def test_metrics_are_aggregated_over_the_rounds_to_the_same(secure):
    aggregator = (
        tff.learning.metrics.secure_sum_then_finalize
        if secure
        else tff.learning.metrics.sum_then_finalize
    )
    process = algorithms.build_weighted_fed_avg(
        models.keras_model, optimizers.build_sgdm(0.1), metrics_aggregator=aggregator
    )
    equivalence.assert_same_rounds(
        process, *rounds(models.cohorts(*SIZES)), atol=1e-6, secure=secure
    )
