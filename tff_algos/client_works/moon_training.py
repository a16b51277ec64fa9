"""Local training with features near the server's and away from the previous model's.

Li, He, Song: "Model-Contrastive Federated Learning", CVPR 2021, arXiv 2103.16257
(MOON).
"""

from typing import Annotated

import attrs
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import local_training, remembered_weights
from tff_algos.client_works.remembering_process import (
    RememberingInput,
    RememberingReport,
    build_remembering_process,
)
from tff_algos.finite import at_least_float32
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import local_model
from tff_algos.models.block_model import BlockModel
from tff_algos.models.local_model import BlockLocalModel, Forward, Weights

_SMALLEST_PRODUCT = 1e-8


def contrastive_losses(
    features: tf.Tensor,
    server: tf.Tensor,
    previous: tf.Tensor,
    contrastive_temperature: float,
) -> tf.Tensor:
    """Returns the model-contrastive losses, [...].

    The loss is -log(exp(s/tau) / (exp(s/tau) + exp(p/tau))), where s and p are the
    cosines of the features with the server's and with the previous model's.

    Args:
      features: The local model's features, [..., q]; cosines of half precision are
        computed in float32.
      server: The server model's features, [..., q].
      previous: The previous local model's features, [..., q].
      contrastive_temperature: tau, > 0.
    """
    features, server, previous = map(at_least_float32, (features, server, previous))
    difference = _cosine(features, previous) - _cosine(features, server)
    return tf.nn.softplus(difference / contrastive_temperature)


def _cosine(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Returns cosines along the last axis; zero for zero vectors."""
    squares = tf.reduce_sum(left**2, -1) * tf.reduce_sum(right**2, -1)
    # The maximum is taken before the square root, whose gradient is infinite at zero.
    norms = tf.sqrt(tf.maximum(squares, _SMALLEST_PRODUCT**2))
    return tf.reduce_sum(left * right, -1) / norms


def _step_gradients(
    server: Weights, previous: Weights, strength: float, contrastive_temperature: float
) -> local_training.StepGradients:
    """Returns the gradients of the batch's loss plus the contrastive loss."""
    # Skipped, not multiplied by zero, so that strength 0 is bit-identical to FedAvg.
    if not strength:
        return local_training.plain_gradients

    def gradients(model: BlockLocalModel, state, batch):
        # Inputs, which may have any dtype, are alike under all weights.
        if model.num_blocks == 1:
            return local_training.plain_gradients(model, state, batch)

        def objective(forward: Forward) -> tf.Tensor:
            others = [
                tf.stop_gradient(_features(model, weights, forward))
                for weights in (server, previous)
            ]
            contrast = model.mean_over_targets(
                contrastive_losses(
                    forward.blocks.features, *others, contrastive_temperature
                ),
                forward.batch,
            )
            return forward.loss + tf.cast(strength * contrast, forward.loss.dtype)

        result = model.loss_gradients(
            state.weights, state.metrics, batch, objective=objective
        )
        return result, state.carry

    return gradients


def _features(model: BlockLocalModel, weights: Weights, forward: Forward) -> tf.Tensor:
    """Returns the batch's features under `weights`, with the same dropout masks."""
    x = forward.blocks.inputs[0]
    frozen = attrs.evolve(forward.mode, batch_statistics=False)
    return model.apply_blocks(weights, x, frozen, stop=model.num_blocks - 1).output


@checked
def build_contrastive_training_client_work(
    model: BlockModel,
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    contrastive_strength: Annotated[float, hparam(low=0)],
    contrastive_temperature: Annotated[float, hparam(above=0)],
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    client_learning_rate_decay: float = 1.0,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds MOON's client work.

    A client minimizes its loss + mu * the mean of `contrastive_losses`, of sequences
    over the positions that count in the loss, and remembers its final weights. In its
    first round the previous model is the server's, so the contrastive loss is log 2 and
    its gradient is zero.

    Args:
      model: A block model; the features are the inputs of its last layer. With one
        layer they are the model's inputs, and the contrastive loss is constant.
      optimizer: The client optimizer.
      contrastive_strength: mu, >= 0; 0 is plain training.
      contrastive_temperature: tau, > 0.
      client_weighting: As in `build_local_training_client_work`.
      client_learning_rate_decay: As in `build_local_training_client_work`.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_local_training_client_work`.

    Returns:
      A process typed as `build_remembering_process`'s: a row is `seen` (bool) and
      `weights`, like the trainable weights, and for models with moving statistics
      the client's `statistics`.

    Raises:
      HyperparameterError: If an argument is out of range.
      TypeError: If `model` is not a block model.
    """
    model = local_model.require_blocks(model).with_classifier_apart()
    local_update = local_training.build_local_update(
        optimizer, client_learning_rate_decay=client_learning_rate_decay
    )
    part = remembered_weights.everything(model)

    def client_update(view: BlockLocalModel, given: RememberingInput):
        server = local_model.flatten(given.server_weights)
        previous = remembered_weights.read(given.row, server, part)
        update = local_update(
            view,
            given.round_num,
            given.server_weights,
            given.dataset,
            _step_gradients(
                server, previous, contrastive_strength, contrastive_temperature
            ),
        )
        report = update.report(view, given.server_weights, client_weighting)
        row = remembered_weights.row(update.final.weights, part)
        return RememberingReport(report, row)

    return build_remembering_process(
        model,
        client_update,
        remembered_weights.specs(model, part),
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
