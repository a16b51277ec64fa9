"""Centralized training: the data centre's reference without federation.

Minibatch training on the pooled examples of all training clients, as a learning
process whose only client is the data centre. Its optimizer state goes on from
round to round, so that one round of K updates equals K rounds of one. Over one
client's examples, unshuffled, it equals one round of FedAvg with E = 1.
"""

import attrs
import tensorflow_federated as tff

from tff_algos import client_works
from tff_algos.algorithms import algorithm
from tff_algos.clients.batching import BatchSpec
from tff_algos.experiments.stage import Stage
from tff_algos.hyperparameters import AT_LEAST_ONE, POSITIVE, choice, hparam
from tff_algos.models.local_model import ModelOrFn


@attrs.frozen(kw_only=True)
class CentralizedHParams(algorithm.RoundHParams):
    """Centralized training."""

    updates_per_round: int = hparam(
        100, int, AT_LEAST_ONE, "minibatch updates that are reported as one round"
    )
    client_optimizer: str = choice("adam", ("sgd", "adam"), "the optimizer")
    client_learning_rate: float = hparam(
        0.001, float, POSITIVE, "learning rate of training", "eta"
    )


def build_centralized(
    model_fn: ModelOrFn,
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
) -> tff.learning.templates.LearningProcess:
    """Builds minibatch training on pooled examples.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      optimizer: The optimizer; one step per batch.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `build_fed_avg`'s, whose
      `next` takes exactly one client: `[batches of the pooled examples]`.
    """
    client_work = client_works.build_pooled_training_client_work(
        model_fn, optimizer, metrics_aggregator=metrics_aggregator
    )
    return algorithm.compose(
        model_fn, client_work, tff.learning.optimizers.build_sgdm(1.0)
    )


def _build_stages(task, hparams):
    stage = Stage(
        name="centralized",
        process=build_centralized(
            task.model,
            algorithm.build_optimizer(
                hparams.client_optimizer, hparams.client_learning_rate
            ),
        ),
        num_rounds=hparams.total_rounds,
        clients_per_round=None,
        batches=BatchSpec(
            batch_size=hparams.client_batch_size, num_steps=hparams.updates_per_round
        ),
    )
    return (stage,)


CENTRALIZED = algorithm.Algorithm(
    name="centralized",
    title="Centralized",
    summary="minibatch training on the pooled examples, no federation",
    paper="the reference of McMahan et al., 2017, arXiv 1602.05629",
    hparams=CentralizedHParams,
    build_stages=_build_stages,
    settings={algorithm.EVERY_TASK: {"client_learning_rate": 0.001}},
)
