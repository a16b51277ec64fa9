"""APFL's client work: a mixture of the shared and the client's own model.

Deng, Kamani, Mahdavi: "Adaptive Personalized Federated Learning", 2020, arXiv
2003.13461, Algorithm 1.
"""

from typing import Annotated, Any

import attrs
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import local_training, remembered_weights
from tff_algos.client_works.local_training import StepGradients
from tff_algos.client_works.remembering_process import (
    RememberingInput,
    RememberingReport,
    build_remembering_process,
)
from tff_algos.finite import at_least_float32
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import WeightMask, local_model
from tff_algos.models.local_model import LocalModel, ModelOrFn, Tensors, Weights


@attrs.frozen
class Mixture:
    """The client's own part of its model.

    Attributes:
      own: v, and the statistics of the mixture.
      mixing: alpha, the weight of v; float64 [].
      num_steps: Steps taken in the round, int32 [].
    """

    own: Weights
    mixing: tf.Tensor
    num_steps: tf.Tensor


def _mixed(mixing: tf.Tensor, own: Tensors, shared: Tensors) -> Tensors:
    """Returns alpha * v + (1 - alpha) * w."""
    return tuple(
        tf.cast(mixing, v.dtype) * v + tf.cast(1.0 - mixing, v.dtype) * w
        for v, w in zip(own, shared, strict=True)
    )


def mixed_weights(
    row: Any, server: Weights, part: WeightMask, mixing: float
) -> Weights:
    """Returns the model that a client predicts with.

    Args:
      row: Its row.
      server: The server's weights.
      part: The weights in the row: `remembered_weights.everything`.
      mixing: alpha of clients without one of their own.
    """
    own = remembered_weights.read(row, server, part)
    trainable = _mixed(_mixing(row, mixing), own.trainable, server.trainable)
    return Weights(trainable, own.non_trainable)


def _inner_product(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Returns the sum of the products, float64 []."""
    # In half precision, products of small numbers would vanish.
    products = at_least_float32(left) * at_least_float32(right)
    return tf.reduce_sum(tf.cast(products, tf.float64))


def _mixing(row: Any, first: float) -> tf.Tensor:
    first = tf.constant(first, tf.float64)
    return tf.where(row["seen"], row["mixing"], first) if "mixing" in row else first


def _step_gradients(learning_rate: Any, adaptive: bool) -> StepGradients:
    """Returns the gradients of w; the carry is the mixture, which takes its own step."""

    def gradients(model: LocalModel, state, batch):
        shared, mixture = state.weights.trainable, state.carry
        own, mixing = mixture.own, mixture.mixing
        mixed = Weights(_mixed(mixing, own.trainable, shared), own.non_trainable)
        result = model.loss_gradients(state.weights, state.metrics, batch)
        with model.uncounted():
            at_mixed = model.loss_gradients(mixed, state.metrics, batch)
        moved = tuple(
            v - tf.cast(learning_rate * mixing, v.dtype) * gradient
            for v, gradient in zip(own.trainable, at_mixed.gradients, strict=True)
        )
        if adaptive:
            slope = tf.add_n(
                [
                    _inner_product(v - w, gradient)
                    for v, w, gradient in zip(
                        own.trainable, shared, at_mixed.gradients, strict=True
                    )
                ]
            )
            adapted = tf.clip_by_value(mixing - learning_rate * slope, 0.0, 1.0)
            mixing = tf.where(tf.equal(mixture.num_steps, 0), adapted, mixing)
        moved = Weights(moved, at_mixed.non_trainable)
        return result, Mixture(moved, mixing, mixture.num_steps + 1)

    return gradients


@checked
def build_mixture_client_work(
    model: ModelOrFn,
    *,
    client_learning_rate: Annotated[float, hparam(above=0)],
    mixing: Annotated[float, hparam(low=0, high=1)],
    adaptive_mixing: Annotated[bool, hparam()],
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    client_learning_rate_decay: float = 1.0,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds APFL's client work.

    Each step is one of w, as FedAvg's, and one of v: v <- v - eta * alpha * grad f(alpha
    v + (1 - alpha) w), at the w before its step.

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function that
        returns a `tff.learning.models.VariableModel`.
      client_learning_rate: eta of plain SGD on w and v.
      mixing: alpha, in [0, 1]; with `adaptive_mixing` that of a client's first round.
      adaptive_mixing: Whether the first step of a round also moves the client's alpha:
        alpha <- alpha - eta * <v - w, grad f(alpha v + (1 - alpha) w)>, clipped to
        [0, 1].
      client_weighting: As in `build_local_training_client_work`.
      client_learning_rate_decay: As in `build_local_training_client_work`.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`; of the
        shared model.
      with_num_examples: As in `build_local_training_client_work`.

    Returns:
      A process typed as `build_remembering_process`'s; a row is v, as in
      `remembered_weights`, and with `adaptive_mixing` also `mixing`, float64 [].

    Raises:
      HyperparameterError: If an argument is out of range.
    """
    optimizer = tff.learning.optimizers.build_sgdm(client_learning_rate)
    local_update = local_training.build_local_update(
        optimizer, client_learning_rate_decay=client_learning_rate_decay
    )
    part = remembered_weights.everything(model)
    specs = remembered_weights.specs(model, part)
    if adaptive_mixing:
        specs["mixing"] = tf.TensorSpec([], tf.float64)

    def client_update(view: LocalModel, given: RememberingInput):
        server = local_model.flatten(given.server_weights)
        start = Mixture(
            remembered_weights.read(given.row, server, part),
            _mixing(given.row, mixing),
            tf.constant(0),
        )
        # As the shared model's rate, which TFF rounds to float32.
        rate = tf.cast(client_learning_rate, tf.float32)
        decay = tf.pow(client_learning_rate_decay, tf.cast(given.round_num, tf.float32))
        step_gradients = _step_gradients(
            tf.cast(rate * decay, tf.float64), adaptive_mixing
        )
        update = local_update(
            view,
            given.round_num,
            given.server_weights,
            given.dataset,
            step_gradients,
            start,
        )
        end = update.final.carry
        row = remembered_weights.row(end.own, part)
        if adaptive_mixing:
            row["mixing"] = end.mixing
        report = update.report(view, given.server_weights, client_weighting, row)
        return RememberingReport(report, row)

    return build_remembering_process(
        model,
        client_update,
        specs,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
