"""Centralized training: the reference without federation.

Minibatch training on the pooled examples of all training clients, as a learning process
whose only client is the data center. Its optimizer state carries over from round to
round, so that one round of K updates equals K rounds of one.

Reduces to: over one client's examples, unshuffled, one round of FedAvg with E = 1.

Cost per round: no communication; the pooled examples are in one place.
"""

from tff_algos import client_works
from tff_algos.algorithms.arguments import LearningProcess, MetricsAggregator, Optimizer
from tff_algos.algorithms.composition import compose
from tff_algos.hyperparameters import checked
from tff_algos.models import ModelOrFn


@checked
def build_centralized(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    *,
    metrics_aggregator: MetricsAggregator | None = None,
) -> LearningProcess:
    """Builds minibatch training on pooled examples.

    Args:
      model_fn: As in `build_fed_avg`.
      client_optimizer_fn: The optimizer, one step per batch.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `build_fed_avg`'s, whose
      `next` takes exactly one client: `[batches of the pooled examples]`.

    Raises:
      HyperparameterError: If an argument is invalid.
    """
    client_work = client_works.build_pooled_training_client_work(
        model_fn, client_optimizer_fn, metrics_aggregator=metrics_aggregator
    )
    return compose(model_fn, client_work)
