"""FedBN: clients keep batch normalization to themselves.

Li, Jiang, Zhang, Kamp, Dou: "FedBN: Federated Learning on Non-IID Features via Local
Batch Normalization", 2021, arXiv 2102.07623.

A round is FedAvg's, except that scales, shifts and moving statistics of batch
normalization are each client's own; they start as the server's.

Clients predict with the server's model and their own batch normalization.

Reduces to: for a model without batch normalization, FedAvg.

Cost per round: a client sends FedAvg's update without batch normalization, which it
remembers. It receives the whole model, from which its first round starts.
"""

from tff_algos import client_works
from tff_algos.algorithms.arguments import (
    BY_NUM_EXAMPLES,
    ClientLearningRateDecay,
    ClientWeighting,
    Distributor,
    MetricsAggregator,
    Optimizer,
    WeightedAggregator,
)
from tff_algos.algorithms.personal_process import (
    PersonalProcess,
    compose_partly_personal,
)
from tff_algos.hyperparameters import checked
from tff_algos.models import BlockModel
from tff_algos.models.local_model import require_blocks


@checked
def build_fed_bn(
    model_fn: BlockModel,
    client_optimizer_fn: Optimizer,
    server_optimizer_fn: Optimizer | None = None,
    *,
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> PersonalProcess:
    """Builds FedBN.

    Args:
      model_fn: A `tff_algos.models.BlockModel`.
      client_optimizer_fn: As in `build_fed_avg`, and so is every argument not listed
        here.

    Returns:
      A `PersonalProcess` typed as `build_scaffold`'s; a row is `seen` (bool) and the
      client's own `weights` and `statistics`, where it has any.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `model_fn` is not a block model.
    """
    personal = require_blocks(model_fn).mask_of_batch_norm()
    client_work = client_works.build_partly_personal_client_work(
        model_fn,
        client_optimizer_fn,
        personal=personal,
        client_weighting=client_weighting,
        client_learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
    return compose_partly_personal(
        model_fn,
        client_work,
        personal,
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )
