"""Personalized FedAvg: FedAvg, then Reptile, then personalization on every client.

Jiang, Konecny, Rush, Kannan: "Improving Federated Learning Personalization via Model
Agnostic Meta Learning", 2019, arXiv 1909.12488, Algorithm 2.

    1. FedAvg(E) with server momentum: converges fast to a good initial model.
    2. Reptile(K) with Adam at the server: fine-tunes it so that it personalizes well.
    3. Every client fine-tunes the model on its own examples
       (`build_personalization_eval`, on clients held out).

Reduces to: without fine-tuning rounds, FedAvgM followed by the evaluation.

Cost per round: FedAvg's.
"""

from typing import Annotated

import attrs
import tensorflow_federated as tff

from tff_algos.algorithms.arguments import (
    LearningProcess,
    Optimizer,
    ServerMomentum,
)
from tff_algos.algorithms.fed_avg import build_fed_avg_m
from tff_algos.algorithms.reptile import build_reptile
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import ModelOrFn


@attrs.frozen
class PersonalizedFedAvg:
    """The two learning processes of Personalized FedAvg, to be run in order.

    Only model weights cross, so that the second optimizer starts afresh:

        state = algorithm.finetune.set_model_weights(
            algorithm.finetune.initialize(),
            algorithm.pretrain.get_model_weights(pretrain_state),
        )

    Attributes:
      pretrain: FedAvg(E) with server momentum.
      finetune: Reptile(K).
    """

    pretrain: LearningProcess
    finetune: LearningProcess


@checked
def build_personalized_fed_avg(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer | None = None,
    *,
    server_learning_rate: Annotated[float, hparam(low=0, symbol="alpha")] = 1.0,
    server_momentum: ServerMomentum = 0.9,
    finetune_server_optimizer_fn: Optimizer | None = None,
    with_num_examples: bool = False,
) -> PersonalizedFedAvg:
    """Builds the two stages of Personalized FedAvg.

    Args:
      model_fn: As in `build_fed_avg`.
      client_optimizer_fn: The optimizer of local steps in both stages; SGD with learning
        rate 0.02 by default.
      server_learning_rate: Server learning rate of FedAvg(E).
      server_momentum: Server momentum of FedAvg(E).
      finetune_server_optimizer_fn: Reptile(K)'s server optimizer; Adam with learning
        rate 0.001 by default.
      with_num_examples: As in `build_fed_avg`, of `finetune`.

    Returns:
      The two processes: give `pretrain` E epochs of every client's batches, `finetune`
      K batches.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    client_optimizer = client_optimizer_fn or tff.learning.optimizers.build_sgdm(0.02)
    return PersonalizedFedAvg(
        pretrain=build_fed_avg_m(
            model_fn,
            client_optimizer,
            server_learning_rate=server_learning_rate,
            server_momentum=server_momentum,
        ),
        finetune=build_reptile(
            model_fn,
            client_optimizer,
            finetune_server_optimizer_fn,
            with_num_examples=with_num_examples,
        ),
    )
