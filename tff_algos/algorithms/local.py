"""Local training: every client trains a model of its own, and nothing is sent.

The baseline of tables on personalization: what clients reach without each other.

    client k:  for each batch b: v_k <- v_k - eta * grad f_b(v_k)

v_k starts as the server's model, which never changes. Clients predict with v_k.

Reduces to: with one client, SGD on its examples.

Cost per round: a client sends nothing but metrics, remembers one model and takes FedAvg's
steps. It receives the server's model, from which its first round starts.
"""

from tff_algos import client_works
from tff_algos.algorithms.arguments import (
    ClientLearningRateDecay,
    MetricsAggregator,
    Optimizer,
)
from tff_algos.algorithms.personal_process import (
    PersonalProcess,
    compose_partly_personal,
)
from tff_algos.client_works.remembered_weights import everything
from tff_algos.hyperparameters import checked
from tff_algos.models import ModelOrFn


@checked
def build_local(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    *,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    metrics_aggregator: MetricsAggregator | None = None,
) -> PersonalProcess:
    """Builds training of every client alone.

    Args:
      model_fn: As in `build_fed_avg`.
      client_optimizer_fn: As in `build_fed_avg`, and so is every argument not listed
        here.

    Returns:
      A `PersonalProcess` typed as `build_scaffold`'s; a row is `seen` (bool) and the
      client's own `weights` and `statistics`, where it has any.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    personal = everything(model_fn)
    client_work = client_works.build_partly_personal_client_work(
        model_fn,
        client_optimizer_fn,
        personal=personal,
        client_learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
    )
    return compose_partly_personal(
        model_fn,
        client_work,
        personal,
    )
