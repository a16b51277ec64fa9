"""pFedMe: clients' own models define the shared one, as a Moreau envelope does.

Dinh, Tran, Nguyen: "Personalized Federated Learning with Moreau Envelopes", 2020,
arXiv 2006.08848, Algorithm 1.

A round, w the server's model, S clients in the cohort, all weighted equally:

    client k:  y <- w;  theta <- w
               for each batch b:  K times:  theta <- theta - eta_p * (grad f_b(theta)
                                                           + lambda * (theta - y))
                                  y <- y - eta * lambda * (y - theta)
    server:    w <- (1 - beta) * w + beta * mean_k y_k

theta approximates prox(y), the minimizer of f_b(theta) + (lambda/2) * ||theta - y||^2,
and lambda * (y - prox(y)) is the gradient of the Moreau envelope of f_b at y. Clients
predict with their last theta.

Reduces to: with beta = 1, the server's model is the mean of the clients' y; with eta *
lambda = 1, y follows theta.

Cost per round: FedAvg's communication. A client remembers one model and takes K gradients
for each of FedAvg's.
"""

from typing import Annotated

from tff_algos import client_works
from tff_algos.algorithms.arguments import (
    UNIFORM,
    ClientLearningRate,
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


@checked
def build_pfedme(
    model_fn: ModelOrFn,
    server_optimizer_fn: Optimizer | None = None,
    *,
    client_learning_rate: ClientLearningRate = 0.05,
    personal_strength: Annotated[float, hparam(above=0, symbol="lambda")] = 15.0,
    personal_steps: Annotated[int, hparam(low=1, symbol="K")] = 5,
    personal_learning_rate: Annotated[float, hparam(above=0, symbol="eta_p")] = 0.05,
    client_weighting: ClientWeighting = UNIFORM,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> PersonalProcess:
    """Builds pFedMe.

    A client whose own model is not finite is excluded, like one whose update is not.

    Args:
      model_fn: As in `build_fed_avg`, and so is every argument not listed here.
      server_optimizer_fn: Takes the mean model delta as gradient; SGD with learning rate
        beta mixes the old model with the mean of the clients' models. By default beta
        is 1.
      client_learning_rate: Learning rate of local steps, which are plain SGD. A step
        covers the fraction eta * lambda of the way to the client's own model, so eta
        should be below 1/lambda.
      personal_strength: Pull of a client's own model theta toward y, its local copy of
        the shared one: lambda, in the penalty (lambda/2) * ||theta - y||^2.
      personal_steps: Gradient steps of the client's own model on each batch.
      personal_learning_rate: Learning rate of the client's own model; it diverges above
        2/lambda.

    Returns:
      A `PersonalProcess` typed as `build_scaffold`'s; a row is `seen` (bool) and
      `weights`, those of theta, and `statistics`, where the model has any.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    client_work = client_works.build_moreau_envelope_client_work(
        model_fn,
        client_learning_rate=client_learning_rate,
        personal_strength=personal_strength,
        personal_steps=personal_steps,
        personal_learning_rate=personal_learning_rate,
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
