"""Personalization evaluation: fine-tune on held-out clients, report metrics.

Jiang, Konecny, Rush, Kannan: "Improving Federated Learning Personalization via
Model Agnostic Meta Learning", 2019, arXiv 1909.12488. Only metrics leave a client.
"""

import collections
from typing import Annotated

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.autograph import convertible
from tff_algos.client_works.local_training import initialize_optimizer, train
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import local_model
from tff_algos.models.local_model import ModelOrFn, VariableLocalModel
from tff_algos.models.variable_model import FunctionalVariableModel
from tff_algos.optimizers import Optimizer

BASELINE = "baseline_metrics"
PERSONALIZED = "personalized_metrics"
_SHUFFLE_BUFFER = 100_000  # Examples; more than any client of the tasks holds.


def _evaluate(
    model: tff.learning.models.VariableModel, batches: tf.data.Dataset
) -> collections.OrderedDict[str, tf.Tensor]:
    """Returns the model's finalized metrics on `batches`."""
    convertible(model.reset_metrics)()

    def count(num_batches: tf.Tensor, batch: object) -> tf.Tensor:
        convertible(model.forward_pass)(batch, training=False)
        return num_batches + 1

    # Read the metrics only after all batches have been processed.
    with tf.control_dependencies([batches.reduce(tf.constant(0), count)]):
        unfinalized = convertible(model.report_local_unfinalized_metrics)()
    finalizers = model.metric_finalizers()
    return collections.OrderedDict(
        (name, convertible(finalizers[name])(value))
        for name, value in unfinalized.items()
    )


def build_personalize_fn(
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    num_epochs: int,
    batch_size: int,
    eval_batch_size: int = 100,
    seed: int = 0,
):
    """Builds a strategy for `build_personalization_eval_computation`.

    Args:
      optimizer: The client optimizer; its state persists across epochs.
      num_epochs: P, >= 0.
      batch_size: Examples per training batch, >= 1.
      eval_batch_size: Examples per evaluation batch, >= 1.
      seed: Seed of the order of the training examples.

    Returns:
      A no-argument function that returns a `tf.function` of the model, the
      unbatched training data and the unbatched test data. That function returns
      each metric of the model after epochs 0, 1, ..., P, of shape [P + 1].
    """

    def build():
        @tf.function
        def personalize(model, train_data, test_data):
            view = VariableLocalModel(model)
            shuffled = train_data.shuffle(_SHUFFLE_BUFFER, seed=seed)
            train_batches = shuffled.batch(batch_size)
            test_batches = test_data.batch(eval_batch_size)
            weights = view.read_weights()
            optimizer_state = initialize_optimizer(optimizer, weights.trainable)
            first = _evaluate(model, test_batches)
            curves = collections.OrderedDict(
                (
                    name,
                    tf.TensorArray(
                        value.dtype,
                        size=num_epochs + 1,
                        element_shape=value.shape,
                        clear_after_read=False,
                    ).write(0, value),
                )
                for name, value in first.items()
            )

            def train_epoch(epoch, weights, optimizer_state, curves):
                final = train(view, optimizer, weights, optimizer_state, train_batches)
                view.assign_weights(final.weights)
                metrics = _evaluate(model, test_batches)
                curves = collections.OrderedDict(
                    (name, curve.write(epoch + 1, metrics[name]))
                    for name, curve in curves.items()
                )
                return epoch + 1, final.weights, final.optimizer_state, curves

            *_, curves = tf.while_loop(
                lambda epoch, *_: epoch < num_epochs,
                train_epoch,
                (tf.constant(0), weights, optimizer_state, curves),
            )
            return collections.OrderedDict(
                (name, curve.stack()) for name, curve in curves.items()
            )

        return personalize

    return build


@checked
def build_personalization_eval(
    model_fn: ModelOrFn,
    optimizer: Optimizer,
    *,
    num_epochs: Annotated[int, hparam(low=0, symbol="P")] = 10,
    batch_size: Annotated[int, hparam(low=1)] = 20,
    eval_batch_size: Annotated[int, hparam(low=1)] = 100,
    max_num_clients: Annotated[int, hparam(low=1)] = 100,
    seed: int = 0,
) -> tff.Computation:
    """Builds the personalization evaluation of the paper's third step.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      optimizer: The optimizer of fine-tuning.
      num_epochs: The epochs of fine-tuning.
      batch_size: Examples per training batch.
      eval_batch_size: Examples per evaluation batch.
      max_num_clients: The largest number of clients in the result.
      seed: Seed of the order of the training examples.

    Returns:
      A computation `(<M@SERVER, {<train_data=E*, test_data=E*>}@CLIENTS> ->
      metrics@SERVER)`, where M is the model's weights and E an unbatched example.
      The metrics are `baseline_metrics`, each metric before fine-tuning, of shape
      [clients], and `personalized_metrics`, each of shape [clients, P + 1] with
      entry p after p epochs. Clients are in the order given, up to `max_num_clients`;
      of more, TFF returns a random sample in random order.

    Raises:
      HyperparameterError: If an argument is invalid.
    """
    if local_model.is_functional(model_fn):
        functional = model_fn

        def model_fn():
            return FunctionalVariableModel(functional)

    @tf.function
    def evaluate(model, test_data):
        return _evaluate(model, test_data.batch(eval_batch_size))

    strategy = build_personalize_fn(
        optimizer,
        num_epochs=num_epochs,
        batch_size=batch_size,
        eval_batch_size=eval_batch_size,
        seed=seed,
    )
    return tff.learning.algorithms.build_personalization_eval_computation(
        model_fn,
        collections.OrderedDict([(PERSONALIZED, strategy)]),
        evaluate,
        max_num_clients,
    )
