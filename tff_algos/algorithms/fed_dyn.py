"""FedDyn: a linear and a proximal term by which the minima of all clients come to agree.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: "Federated Learning Based on
Dynamic Regularization", 2021, arXiv 2111.04263.

A round, S of N clients in the cohort, all weighted equally; lambda_k and h, the mean of
all lambda_k, start at zero:

    client k minimizes  f(y) - <lambda_k, y> + alpha/2 * ||y - w||^2;  delta_k = w - y_k
                        lambda_k <- lambda_k + alpha * delta_k
    server:             h <- h + (alpha/N) * sum_k delta_k;  w <- mean_k y_k - h/alpha

Reduces to: in the first round FedProx (mu = alpha, uniform weights) with server learning
rate 1 + S/N. alpha = 0 is defined as FedAvg with uniform weights, which is not the
limit.

Cost per round: FedAvg's communication. A client remembers one model (lambda_k), the
server keeps two.
"""

from typing import Annotated

from tff_algos import aggregators, client_works, finalizers
from tff_algos.algorithms.arguments import (
    ClientLearningRateDecay,
    Distributor,
    LearningProcess,
    MetricsAggregator,
    NumClients,
    Optimizer,
    WeightedAggregator,
)
from tff_algos.algorithms.composition import compose
from tff_algos.hyperparameters import POSITIVE, HyperparameterError, checked, hparam
from tff_algos.models import ModelOrFn, local_model


@checked
def build_fed_dyn(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    *,
    num_clients: NumClients,
    dynamic_regularization: Annotated[float, hparam(low=0, symbol="alpha")] = 0.01,
    mean_examples: float | None = None,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds FedDyn.

    Args:
      model_fn: As in `build_fed_avg`, and so is every argument not listed here.
      client_optimizer_fn: The optimizer of local steps, one step per batch.
      num_clients: N, all clients in the population.
      dynamic_regularization: alpha, the strength of FedDyn's two terms.
      mean_examples: n, the mean over all clients of n_k, the examples in a client's
        batches or what its data say (`with_num_examples`), > 0. Client k then has
        alpha_k = alpha * n/n_k and lambda_k * n/n_k in place of alpha and lambda_k, as in
        the authors' code. None: all clients have alpha.

    Returns:
      As `build_scaffold`; rows are lambda_k.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    if mean_examples is not None and mean_examples not in POSITIVE:
        raise HyperparameterError(
            "mean_examples", mean_examples, f"a number {POSITIVE}"
        )
    client_work = client_works.build_dynamic_regularization_client_work(
        model_fn,
        client_optimizer_fn,
        dynamic_regularization=dynamic_regularization,
        mean_examples=mean_examples,
        client_learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
    finalizer = finalizers.build_dynamic_regularization_finalizer(
        local_model.weights_type(model_fn),
        dynamic_regularization=dynamic_regularization,
        num_clients=num_clients,
    )
    return compose(
        model_fn,
        client_work,
        finalizer=finalizer,
        model_distributor=model_distributor,
        model_aggregator=aggregators.TotalWeightFactory(model_aggregator),
    )
