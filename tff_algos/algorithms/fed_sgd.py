"""FedSGD: one full-batch gradient per sampled client and round.

McMahan, Moore, Ramage, Hampson, Agueera y Arcas: "Communication-Efficient
Learning of Deep Networks from Decentralized Data", 2017, arXiv 1602.05629.

With every client in every round and weights by examples it is full-batch
gradient descent on the pooled data. With SGD it equals FedAvg with one
full-batch local step.
"""

import attrs
import tensorflow_federated as tff

from tff_algos import client_works
from tff_algos.algorithms import algorithm
from tff_algos.clients.batching import BatchSpec
from tff_algos.experiments.stage import Stage
from tff_algos.models.local_model import ModelOrFn


@attrs.frozen(kw_only=True)
class FedSGDHParams(algorithm.CohortHParams, algorithm.ServerOptimizerHParams):
    """FedSGD: eta_g and S; batches only bound the memory."""


def build_fed_sgd(
    model_fn: ModelOrFn,
    server_optimizer: tff.learning.optimizers.Optimizer,
    *,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    model_distributor: tff.learning.templates.DistributionProcess | None = None,
    model_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
) -> tff.learning.templates.LearningProcess:
    """Builds FedSGD.

    The same numbers as `tff.learning.algorithms.build_fed_sgd`, and besides:
    uniform weights, and invalid clients are counted.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      server_optimizer: Takes its step with the mean of the clients' gradients.
      client_weighting: Whether clients weigh by their examples or all alike.
      model_distributor: Instead of a plain broadcast.
      model_aggregator: Instead of the weighted mean.
      metrics_aggregator: As in `tff.learning.algorithms.build_fed_sgd`.

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `build_fed_avg`'s. Each
      example of a client should come once: the batching does not matter.
    """
    client_work = client_works.build_full_gradient_client_work(
        model_fn,
        client_weighting=client_weighting,
        metrics_aggregator=metrics_aggregator,
    )
    return algorithm.compose(
        model_fn,
        client_work,
        server_optimizer,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )


def _build_stages(task, hparams):
    process = build_fed_sgd(
        task.model,
        algorithm.server_optimizer_from(hparams),
        client_weighting=algorithm.client_weighting(hparams),
    )
    stage = Stage(
        name="fedsgd",
        process=process,
        num_rounds=hparams.total_rounds,
        clients_per_round=hparams.clients_per_round,
        batches=BatchSpec(
            batch_size=hparams.client_batch_size,
            num_epochs=1,
            max_elements=hparams.max_elements_per_client,
        ),
    )
    return (stage,)


FED_SGD = algorithm.Algorithm(
    name="fedsgd",
    title="FedSGD",
    summary="one full-batch gradient per sampled client and round",
    paper="McMahan et al., 2017, arXiv 1602.05629",
    hparams=FedSGDHParams,
    build_stages=_build_stages,
    settings={
        algorithm.EVERY_TASK: {
            "client_batch_size": 100,
            "server_learning_rate": 0.1,
            "total_rounds": 50,
        },
        "shakespeare": {"server_learning_rate": 1.0},
        "stackoverflow": {"server_learning_rate": 1.0},
    },
)
