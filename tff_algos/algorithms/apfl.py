"""APFL: clients predict with a mixture of the shared and their own model.

Deng, Kamani, Mahdavi: "Adaptive Personalized Federated Learning", 2020, arXiv
2003.13461, Algorithm 1.

A round is FedAvg's with plain SGD. With each of its steps, a client also takes one of its
own model v_k, which starts as the server's, at the mixture m = alpha v_k + (1 - alpha) y:

    client k:  for each batch b:  v_k <- v_k - eta * alpha * grad f_b(m)
                                  y   <- y - eta * grad f_b(y)
    adaptive:  in a round's first step,  alpha <- alpha - eta * <v_k - y, grad f_b(m)>,
               clipped to [0, 1]

Clients predict with alpha v_k + (1 - alpha) w, w the server's model.

Reduces to: the server's model is FedAvg's; with alpha = 0, so is the clients'; with alpha
= 1, v_k is trained on client k alone.

Cost per round: FedAvg's communication. A client remembers one model and takes twice
FedAvg's gradients.
"""

from typing import Annotated

from tff_algos import client_works
from tff_algos.algorithms.arguments import (
    BY_NUM_EXAMPLES,
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
from tff_algos.client_works import apfl_training, remembered_weights
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import ModelOrFn


@checked
def build_apfl(
    model_fn: ModelOrFn,
    server_optimizer_fn: Optimizer | None = None,
    *,
    client_learning_rate: ClientLearningRate = 0.1,
    mixing: Annotated[float, hparam(low=0, high=1, symbol="alpha")] = 0.5,
    adaptive_mixing: Annotated[bool, hparam()] = False,
    client_weighting: ClientWeighting = BY_NUM_EXAMPLES,
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> PersonalProcess:
    """Builds APFL.

    A client whose own model is not finite is excluded, like one whose update is not.

    Args:
      model_fn: As in `build_fed_avg`, and so is every argument not listed here.
      client_learning_rate: Learning rate of local steps, which are plain SGD.
      mixing: Weight of a client's own model in the mixture that it predicts with.
      adaptive_mixing: Learn each client's weight of its own model, starting from
        `mixing`.

    Returns:
      A `PersonalProcess` typed as `build_scaffold`'s; a row is `seen` (bool) and
      `weights`, those of v_k, with `adaptive_mixing` the client's `mixing` (float64), and
      `statistics`, where the model has any.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    client_work = client_works.build_mixture_client_work(
        model_fn,
        client_learning_rate=client_learning_rate,
        mixing=mixing,
        adaptive_mixing=adaptive_mixing,
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
        lambda server, row: apfl_training.mixed_weights(row, server, part, mixing),
    )
