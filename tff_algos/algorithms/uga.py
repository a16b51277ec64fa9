"""UGA: federated learning with unbiased gradient aggregation.

Yao, Huang, Sun: "Federated Learning with Unbiased Gradient Aggregation and
Controllable Meta Updating", 2019, arXiv 1910.08234.

A client trains E - 1 epochs from the server's model w and reports the gradient of
its loss on all of its examples after that, with respect to w, through the training.
The server takes a gradient step with the mean. With E = 1 UGA is FedSGD; with equal
numbers of batches it is MAML(K) whose query is all examples, under uniform weights.
"""

import attrs
import tensorflow_federated as tff

from tff_algos.algorithms import algorithm
from tff_algos.client_works import meta_gradient, unrolled_training
from tff_algos.client_works.meta_gradient import Reduction
from tff_algos.clients.batching import BatchSpec
from tff_algos.hyperparameters import AT_LEAST_ONE, POSITIVE, choice, hparam

_PAPER = "Yao et al., 2019, arXiv 1910.08234"


@attrs.frozen(kw_only=True, slots=False)
class UGAClientHParams(algorithm.CohortHParams, algorithm.ClientRateHParams):
    """UGA's clients: eta, E, B, S."""

    client_epochs_per_round: int = hparam(
        2, int, AT_LEAST_ONE, "local epochs per round, the last for the gradient", "E"
    )
    eval_reduction: str = choice(
        "mean", ("mean", "sum"), "reduction of the loss over a client's examples"
    )
    gradient_clip_norm: float | None = hparam(
        None, float, POSITIVE, "largest L2 norm of a client's gradient (no limit)"
    )

    def batches(self) -> BatchSpec:
        """Returns the batches of one epoch, which the client work repeats."""
        return BatchSpec(
            batch_size=self.client_batch_size,
            num_epochs=1,
            max_elements=self.max_elements_per_client,
        )


@attrs.frozen(kw_only=True)
class UGAHParams(UGAClientHParams, algorithm.ServerOptimizerHParams):
    """UGA: eta, E, B, S at the clients, eta_g at the server."""


def build_unbiased_gradient_aggregation(
    model_fn: tff.learning.models.FunctionalModel,
    server_optimizer: tff.learning.optimizers.Optimizer,
    *,
    client_learning_rate: float,
    num_epochs: int = 2,
    client_learning_rate_decay: float = 1.0,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    eval_reduction: Reduction = "mean",
    gradient_clip_norm: float | None = None,
    max_trajectory_bytes: int = unrolled_training.MAX_TRAJECTORY_BYTES,
    model_distributor: tff.learning.templates.DistributionProcess | None = None,
    model_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
) -> tff.learning.templates.LearningProcess:
    """Builds UGA.

    Local steps are plain SGD, the only optimizer that the gradient goes back through.
    A client keeps the weights before each of its steps, or about the square root of
    them (`max_trajectory_bytes`), and the activations of one step.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, whose loss is a function of
        weights and batch (the same dropout for the same two).
      server_optimizer: Takes its step with the mean of the clients' gradients.
      client_learning_rate: eta of the local steps, > 0.
      num_epochs: E >= 1: E - 1 epochs of steps, one that evaluates the gradient.
      client_learning_rate_decay: Factor on eta after every round, in (0, 1].
      client_weighting: Whether clients weigh by their examples or all alike.
      eval_reduction: Whether a client's loss after training is the mean or the sum
        over its examples.
      gradient_clip_norm: Largest L2 norm of a client's gradient, > 0; None for no
        limit.
      max_trajectory_bytes: Memory of a client for the weights of all its steps.
      model_distributor: Instead of a plain broadcast.
      model_aggregator: Instead of the weighted mean.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `build_fed_avg`'s. Clients'
      data sets give each example once: the process repeats them.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `model_fn` is not a functional model.
      ValueError: If the model draws at random what it would not draw again.
    """
    UGAClientHParams(
        client_learning_rate=client_learning_rate,
        client_learning_rate_decay=client_learning_rate_decay,
        client_epochs_per_round=num_epochs,
        eval_reduction=eval_reduction,
        gradient_clip_norm=gradient_clip_norm,
    )
    client_work = meta_gradient.build_meta_gradient_client_work(
        model_fn,
        client_learning_rate,
        meta_gradient.epochs_then_all(num_epochs),
        client_weighting=client_weighting,
        query_reduction=eval_reduction,
        gradient_clip_norm=gradient_clip_norm,
        learning_rate_decay=client_learning_rate_decay,
        max_trajectory_bytes=max_trajectory_bytes,
        metrics_aggregator=metrics_aggregator,
    )
    return algorithm.compose(
        model_fn,
        client_work,
        server_optimizer,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )


def build_from(
    model: tff.learning.models.FunctionalModel, hparams: UGAHParams
) -> tff.learning.templates.LearningProcess:
    """Builds UGA as a record says."""
    return build_unbiased_gradient_aggregation(
        model,
        algorithm.server_optimizer_from(hparams),
        client_learning_rate=hparams.client_learning_rate,
        num_epochs=hparams.client_epochs_per_round,
        client_learning_rate_decay=hparams.client_learning_rate_decay,
        client_weighting=algorithm.client_weighting(hparams),
        eval_reduction=hparams.eval_reduction,
        gradient_clip_norm=hparams.gradient_clip_norm,
    )


def _build_stages(task, hparams):
    return algorithm.single_stage("uga", build_from(task.model, hparams), hparams)


UGA = algorithm.Algorithm(
    name="uga",
    title="UGA",
    summary="gradients taken through local training, back to the server's model",
    paper=_PAPER,
    hparams=UGAHParams,
    build_stages=_build_stages,
    settings={algorithm.EVERY_TASK: {"server_learning_rate": 0.1}},
)
