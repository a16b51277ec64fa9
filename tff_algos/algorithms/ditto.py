"""Ditto: clients train a model of their own near the one that all share.

Li, Hu, Beirami, Smith: "Ditto: Fair and Robust Federated Learning Through
Personalization", 2021, arXiv 2012.04221.

A round is FedAvg's. Beside it, each client of the cohort trains its own model v_k, which
starts as the server's, on the same examples, read a second time (a dataset that
reshuffles gives other batches):

    client k:  y <- w;    for each batch b: y <- y - eta * grad f_b(y);  delta_k = w - y
               for each batch b: v_k <- v_k - eta * (grad f_b(v_k) + lambda * (v_k - w))
    server:    w <- w - eta_g * sum_k p_k delta_k

Clients predict with v_k.

Reduces to: the server's model is FedAvg's; with lambda = 0, v_k is trained on client k
alone.

Cost per round: FedAvg's communication. A client remembers one model and takes twice
FedAvg's steps.
"""

from typing import Annotated

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
from tff_algos.algorithms.composition import compose
from tff_algos.algorithms.personal_process import PersonalProcess
from tff_algos.client_works import remembered_weights
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import ModelOrFn

PersonalStrength = Annotated[float, hparam(low=0, symbol="lambda")]


@checked
def build_ditto(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    server_optimizer_fn: Optimizer | None = None,
    *,
    personal_strength: PersonalStrength = 0.1,
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> PersonalProcess:
    """Builds Ditto.

    A client whose own model is not finite is excluded, like one whose update is not.

    Args:
      model_fn: As in `build_fed_avg`, and so is every argument not listed here.
      client_optimizer_fn: The optimizer of local steps, of the shared and of the
        client's own model.
      personal_strength: Pull of a client's own model toward the server's: lambda, in the
        penalty (lambda/2) * ||v - w||^2.

    Returns:
      A `PersonalProcess` typed as `build_scaffold`'s; a row is `seen` (bool) and
      `weights`, those of v_k, and `statistics`, where the model has any.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    client_work = client_works.build_ditto_client_work(
        model_fn,
        client_optimizer_fn,
        personal_strength=personal_strength,
        client_weighting=client_weighting,
        client_learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
    process = compose(
        model_fn,
        client_work,
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )
    part = remembered_weights.everything(model_fn)
    return PersonalProcess(
        process,
        model_fn,
        lambda server, row: remembered_weights.read(row, server, part),
    )
