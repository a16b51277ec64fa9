"""SCAFFOLD: clients correct their steps by control variates.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning", 2020, arXiv 1910.06378.

A round, S of N clients in the cohort, all weighted equally, c the mean of all control
variates c_k, which start at zero:

    client k:  K times: y <- y - eta * (grad f_b(y) - c_k + c);  delta_k = w - y
               option I   c_k' = grad F_k(w), over all of its examples
               option II  c_k' = c_k - c + delta_k / (K * eta)
    server:    w <- w - eta_g * mean_k delta_k;  c <- c + (S/N) * mean_k (c_k' - c_k)

Reduces to: in the first round, where all control variates are zero, FedAvg with uniform
weights; with one client, local SGD.

Cost per round: a client receives two models, sends two, and remembers one (c_k).
"""

from typing import Annotated

from tff_algos import client_works
from tff_algos.algorithms.arguments import (
    ClientLearningRate,
    ClientLearningRateDecay,
    Distributor,
    LearningProcess,
    MetricsAggregator,
    NumClients,
    Optimizer,
    WeightedAggregator,
)
from tff_algos.algorithms.composition import compose
from tff_algos.client_works.scaffold_training import ControlVariate
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import ModelOrFn


@checked
def build_scaffold(
    model_fn: ModelOrFn,
    server_optimizer_fn: Optimizer | None = None,
    *,
    num_clients: NumClients,
    client_learning_rate: ClientLearningRate = 0.1,
    control_variate: Annotated[ControlVariate, hparam()] = "mean_step",
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
    with_full_pass: bool = False,
) -> LearningProcess:
    """Builds SCAFFOLD.

    Local steps are plain SGD, the only optimizer for which option II recovers the mean
    gradient of a client's steps.

    Args:
      model_fn: As in `build_fed_avg`, and so is every argument not listed here.
      server_optimizer_fn: Takes the mean model delta as gradient; SGD with learning
        rate 1 by default.
      num_clients: N, all clients in the population.
      client_learning_rate: Learning rate of local steps.
      control_variate: New control variate of a client: the mean of its steps' gradients
        (mean_step, option II), or the gradient of all its examples at the server's model
        (full_gradient, option I), which takes one more pass over them.
      with_full_pass: Whether clients' data include `full_pass`, batches in which each of
        a client's examples occurs once, over which "full_gradient" is taken.

    Returns:
      A `tff.learning.templates.LearningProcess` whose `next` has the type
      `(<S@SERVER, {<examples=B*, client_index=int32*, memory=row*>}@CLIENTS> ->
      <state=S@SERVER, metrics=M@SERVER>)`. `client_index` holds the client's number in
      [0, N), `memory` its c_k; new ones are in the metrics, under `client_work/memory`.
      `tff_algos.ClientMemory` keeps them between rounds.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    client_work = client_works.build_scaffold_client_work(
        model_fn,
        client_learning_rate=client_learning_rate,
        num_clients=num_clients,
        control_variate=control_variate,
        client_learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
        with_full_pass=with_full_pass,
    )
    return compose(
        model_fn,
        client_work,
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )
