"""pFedMe's client work: steps toward the client's own, proximal, model.

Dinh, Tran, Nguyen: "Personalized Federated Learning with Moreau Envelopes", 2020,
arXiv 2006.08848, Algorithm 1.
"""

from typing import Annotated

import attrs
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import local_training, remembered_weights
from tff_algos.client_works.local_training import StepGradients, TrainingState
from tff_algos.client_works.remembering_process import (
    RememberingInput,
    RememberingReport,
    build_remembering_process,
)
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import local_model
from tff_algos.models.local_model import LocalModel, ModelOrFn, Weights


def _envelope_gradients(
    personal_strength: float, personal_steps: int, personal_learning_rate: float
) -> StepGradients:
    """Returns the gradients of the Moreau envelope, lambda * (w - theta).

    The carry is theta, the approximate minimizer of the batch's loss plus
    (lambda/2) * ||theta - w||^2, where the next batch's descent begins.
    """

    def descend(model: LocalModel, state: TrainingState, batch, theta, statistics):
        weights = Weights(theta, statistics)
        result = model.loss_gradients(weights, state.metrics, batch)
        moved = tuple(
            own
            - tf.constant(personal_learning_rate, own.dtype)
            * (gradient + tf.constant(personal_strength, own.dtype) * (own - center))
            for own, gradient, center in zip(
                theta, result.gradients, state.weights.trainable, strict=True
            )
        )
        return moved, result

    def gradients(model, state, batch):
        # The first descent counts the batch, as the metrics of training.
        statistics = state.weights.non_trainable
        theta, counted = descend(model, state, batch, state.carry, statistics)

        def body(step, theta, statistics):
            theta, result = descend(model, state, batch, theta, statistics)
            return step + 1, theta, result.non_trainable

        with model.uncounted():
            _, theta, statistics = tf.while_loop(
                lambda step, *_: step < personal_steps,
                body,
                (tf.constant(1), theta, counted.non_trainable),
            )
        envelope = tuple(
            tf.constant(personal_strength, own.dtype) * (center - own)
            for own, center in zip(theta, state.weights.trainable, strict=True)
        )
        result = attrs.evolve(counted, gradients=envelope, non_trainable=statistics)
        return result, theta

    return gradients


@checked
def build_moreau_envelope_client_work(
    model: ModelOrFn,
    *,
    client_learning_rate: Annotated[float, hparam(above=0)],
    personal_strength: Annotated[float, hparam(above=0)],
    personal_steps: Annotated[int, hparam(low=1)],
    personal_learning_rate: Annotated[float, hparam(above=0)],
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.UNIFORM
    ),
    client_learning_rate_decay: float = 1.0,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds pFedMe's client work: w <- w - eta * lambda * (w - theta), per batch.

    theta comes of `personal_steps` gradient steps on the batch's loss plus (lambda/2) *
    ||theta - w||^2, from the previous batch's theta, or from the server's model.

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function that
        returns a `tff.learning.models.VariableModel`.
      client_learning_rate: eta of plain SGD on w.
      personal_strength: lambda, > 0.
      personal_steps: K, >= 1, the steps on theta per batch.
      personal_learning_rate: Learning rate of the steps on theta.
      client_weighting: As in `build_local_training_client_work`.
      client_learning_rate_decay: Decay factor of eta per round.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`; of
        theta before the steps on each batch.
      with_num_examples: As in `build_local_training_client_work`.

    Returns:
      A process typed as `build_remembering_process`'s; a row is the last theta, as in
      `remembered_weights`.

    Raises:
      HyperparameterError: If an argument is out of range.
    """
    local_update = local_training.build_local_update(
        tff.learning.optimizers.build_sgdm(client_learning_rate),
        client_learning_rate_decay=client_learning_rate_decay,
    )
    step_gradients = _envelope_gradients(
        personal_strength, personal_steps, personal_learning_rate
    )
    part = remembered_weights.everything(model)

    def client_update(view: LocalModel, given: RememberingInput):
        server = local_model.flatten(given.server_weights)
        update = local_update(
            view,
            given.round_num,
            given.server_weights,
            given.dataset,
            step_gradients,
            server.trainable,
        )
        own = Weights(update.final.carry, update.final.weights.non_trainable)
        row = remembered_weights.row(own, part)
        report = update.report(view, given.server_weights, client_weighting, row)
        return RememberingReport(report, row)

    return build_remembering_process(
        model,
        client_update,
        remembered_weights.specs(model, part),
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
