"""UGA: unbiased gradient aggregation.

Yao, Huang, Sun: "Federated Learning with Unbiased Gradient Aggregation and Controllable
Meta Updating", 2019, arXiv 1910.08234.

A round, F_k client k's loss over all of its examples and p_k its weight, sum p_k = 1:

    client k:  y(w) = w after E - 1 epochs of SGD with learning rate eta
               g_k = grad_w F_k(y(w)), back through the training
    server:    w <- w - eta_g * sum_k p_k g_k

Reduces to: FedSGD with E = 1; with equal numbers of batches, MAML(K) whose query is all
examples, under uniform weights.

A client regroups its examples into batches of the size of its first one, so only the last
batch of a pass may be smaller.

Cost per round: FedSGD's communication. A client keeps the weights before each of its
steps, or about the square root of them (`max_trajectory_bytes`), and the activations of
one step.
"""

from typing import Annotated

import tensorflow_federated as tff

from tff_algos.algorithms.arguments import (
    BY_NUM_EXAMPLES,
    ClientLearningRate,
    ClientLearningRateDecay,
    ClientWeighting,
    Distributor,
    GradientClipNorm,
    LearningProcess,
    MetricsAggregator,
    Optimizer,
    WeightedAggregator,
)
from tff_algos.algorithms.composition import compose
from tff_algos.client_works import meta_gradient, unrolled_training
from tff_algos.client_works.meta_gradient import Reduction
from tff_algos.hyperparameters import checked, hparam


@checked
def build_unbiased_gradient_aggregation(
    model_fn: tff.learning.models.FunctionalModel,
    server_optimizer_fn: Optimizer,
    *,
    client_learning_rate: ClientLearningRate = 0.1,
    client_epochs_per_round: Annotated[int, hparam(low=1, symbol="E")] = 2,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    eval_reduction: Annotated[Reduction, hparam()] = "mean",
    gradient_clip_norm: GradientClipNorm = None,
    max_trajectory_bytes: int = unrolled_training.MAX_TRAJECTORY_BYTES,
    epochs_in_data: bool = False,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
) -> LearningProcess:
    """Builds UGA.

    Local steps are plain SGD, the only optimizer that the gradient goes back through.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel` whose loss is a function of
        weights and batch (the same dropout for the same two).
      server_optimizer_fn: Takes its step with the mean of the clients' gradients.
      client_learning_rate: Learning rate of local steps.
      client_epochs_per_round: Local epochs per round: E - 1 epochs of local steps, then
        one that evaluates the gradient.
      client_learning_rate_decay: Decay factor of the client learning rate per round.
      client_weighting: How clients are weighted: by their examples, or all equally.
      eval_reduction: Reduction of the loss over a client's examples after training.
      gradient_clip_norm: Largest L2 norm of a client's gradient; None for no limit.
      max_trajectory_bytes: A client's memory for the weights of all its steps.
      epochs_in_data: Whether clients' datasets hold all E epochs, each in an order of
        its own.
      model_distributor: Replaces the plain broadcast.
      model_aggregator: Replaces the weighted mean.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `build_fed_avg`'s. Clients'
      datasets hold each example once, and the process repeats them, unless
      `epochs_in_data` is set.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `model_fn` is not a functional model.
      ValueError: If the model draws random numbers that it would not draw again.
    """
    client_work = meta_gradient.build_meta_gradient_client_work(
        model_fn,
        client_learning_rate,
        meta_gradient.epochs_then_all(client_epochs_per_round, epochs_in_data),
        client_weighting=client_weighting,
        eval_reduction=eval_reduction,
        gradient_clip_norm=gradient_clip_norm,
        client_learning_rate_decay=client_learning_rate_decay,
        max_trajectory_bytes=max_trajectory_bytes,
        metrics_aggregator=metrics_aggregator,
    )
    return compose(
        model_fn,
        client_work,
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )
