"""Reptile, and Personalized FedAvg: FedAvg, then Reptile, then personalization.

Jiang, Konecny, Rush, Kannan: "Improving Federated Learning Personalization via
Model Agnostic Meta Learning", 2019, arXiv 1909.12488.
Reptile: Nichol, Achiam, Schulman: "On First-Order Meta-Learning Algorithms",
2018, arXiv 1803.02999.

Reptile(K) takes K local steps on every client, whatever its number of examples,
and weighs clients alike. It equals uniform FedAvg where E epochs are K steps on
every client; Reptile(1) on full batches is uniform FedSGD with learning rate
eta * eta_g. Personalized FedAvg with no fine-tuning rounds is FedAvg(E) with
server momentum, followed by the evaluation.
"""

import attrs
import tensorflow_federated as tff

from tff_algos.algorithms import algorithm
from tff_algos.algorithms.fed_avg import build_fed_avg, build_fed_avg_m
from tff_algos.clients.batching import BatchSpec
from tff_algos.experiments.stage import Stage
from tff_algos.hyperparameters import (
    AT_LEAST_ONE,
    MOMENTUM,
    NON_NEGATIVE,
    POSITIVE,
    HyperparameterError,
    choice,
    hparam,
)
from tff_algos.models.local_model import ModelOrFn

_PAPER = "Jiang et al., 2019, arXiv 1909.12488"
# The paper trains 500 rounds of FedAvg and fine-tunes 200 rounds of Reptile.
_FINETUNE_SHARE = 200 / 700


@attrs.frozen(kw_only=True)
class ReptileHParams(algorithm.RoundHParams):
    """Reptile(K): eta, K, B at the clients; S; the server optimizer."""

    clients_per_round: int = hparam(
        5, int, AT_LEAST_ONE, "clients sampled per round", "S"
    )
    max_elements_per_client: int | None = hparam(
        None, int, AT_LEAST_ONE, "most examples of a client used per round (all)"
    )
    client_steps_per_round: int = hparam(
        10, int, AT_LEAST_ONE, "local steps per round", "K"
    )
    client_learning_rate: float = hparam(
        0.02, float, POSITIVE, "learning rate of local steps", "eta"
    )
    step_batching: str = algorithm.step_batching_choice()
    server_optimizer: str = choice(
        "adam", ("sgd", "adagrad", "adam", "yogi"), "optimizer of the server's step"
    )
    server_learning_rate: float = hparam(
        0.001, float, NON_NEGATIVE, "server learning rate", "eta_g"
    )
    server_momentum: float = hparam(
        0.0, float, MOMENTUM, "momentum of the server's step (of sgd)"
    )

    def __attrs_post_init__(self):
        algorithm.check_momentum(
            "server_momentum", self.server_momentum, self.server_optimizer
        )


@attrs.frozen(kw_only=True)
class PersonalizedFedAvgHParams:
    """FedAvg(E) with momentum, then Reptile(K) with Adam.

    `total_rounds` stands for both stages, split 5 to 2 unless a stage's rounds
    are set; where all three are set they must add up.
    """

    total_rounds: int | None = hparam(
        None, int, NON_NEGATIVE, "rounds of both stages, split 5 to 2 (28)"
    )
    pretrain_rounds: int | None = hparam(
        None, int, NON_NEGATIVE, "rounds of FedAvg(E)", "R1"
    )
    finetune_rounds: int | None = hparam(
        None, int, NON_NEGATIVE, "rounds of Reptile(K)", "R2"
    )
    clients_per_round: int = hparam(
        5, int, AT_LEAST_ONE, "clients sampled per round", "M"
    )
    max_elements_per_client: int | None = hparam(
        None, int, AT_LEAST_ONE, "most examples of a client used per round (all)"
    )
    client_batch_size: int = hparam(20, int, AT_LEAST_ONE, "examples per batch", "B")
    client_epochs_per_round: int = hparam(
        10, int, AT_LEAST_ONE, "local epochs of FedAvg(E)", "E"
    )
    client_learning_rate: float = hparam(
        0.02, float, POSITIVE, "learning rate of local steps, both stages", "beta"
    )
    server_learning_rate: float = hparam(
        1.0, float, NON_NEGATIVE, "server learning rate of FedAvg(E)", "alpha"
    )
    server_momentum: float = hparam(
        0.9, float, MOMENTUM, "server momentum of FedAvg(E)"
    )
    finetune_steps: int = hparam(
        10, int, AT_LEAST_ONE, "local steps of Reptile(K)", "K"
    )
    finetune_server_optimizer: str = choice(
        "adam", ("sgd", "adagrad", "adam", "yogi"), "server optimizer of Reptile(K)"
    )
    finetune_server_learning_rate: float = hparam(
        0.001, float, NON_NEGATIVE, "server learning rate of Reptile(K)"
    )
    finetune_server_momentum: float = hparam(
        0.0, float, MOMENTUM, "server momentum of Reptile(K) (of sgd)"
    )

    def stage_rounds(self) -> tuple[int, int]:
        """Returns the rounds of FedAvg(E) and of Reptile(K).

        Raises:
          HyperparameterError: If the rounds that are set do not add up.
        """
        total = 28 if self.total_rounds is None else self.total_rounds
        pretrain, finetune = self.pretrain_rounds, self.finetune_rounds
        if self.total_rounds is None and None not in (pretrain, finetune):
            return pretrain, finetune
        if finetune is None:
            finetune = (
                round(total * _FINETUNE_SHARE) if pretrain is None else total - pretrain
            )
        if pretrain is None:
            pretrain = total - finetune
        if min(pretrain, finetune) < 0 or pretrain + finetune != total:
            raise HyperparameterError(
                "total_rounds",
                total,
                "pretrain_rounds + finetune_rounds "
                f"(pretrain_rounds={self.pretrain_rounds}, "
                f"finetune_rounds={self.finetune_rounds})",
            )
        return pretrain, finetune

    def __attrs_post_init__(self):
        self.stage_rounds()
        algorithm.check_momentum(
            "finetune_server_momentum",
            self.finetune_server_momentum,
            self.finetune_server_optimizer,
        )


def build_reptile(
    model_fn: ModelOrFn,
    client_optimizer: tff.learning.optimizers.Optimizer,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    **kwargs,
) -> tff.learning.templates.LearningProcess:
    """Builds Reptile(K), where K is the number of batches that each client gets.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      client_optimizer: The optimizer of local steps, one per batch; give every
        client K batches: `dataset.repeat().batch(B).take(K)`.
      server_optimizer: Takes the mean model delta for a gradient; Adam with
        learning rate 0.001 by default.
      **kwargs: The other arguments of `build_fed_avg`, but for the weighting,
        which is uniform over the clients that have examples.

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `build_fed_avg`'s.
    """
    return build_fed_avg(
        model_fn,
        client_optimizer,
        server_optimizer or tff.learning.optimizers.build_adam(0.001),
        client_weighting=tff.learning.ClientWeighting.UNIFORM,
        **kwargs,
    )


@attrs.frozen
class PersonalizedFedAvg:
    """The two learning processes of Personalized FedAvg, to be run in order.

    Only model weights cross, so that the second optimizer starts afresh:

        state = algorithm.finetune.set_model_weights(
            algorithm.finetune.initialize(),
            algorithm.pretrain.get_model_weights(pretrain_state),
        )

    The third step is `build_personalization_eval`, on clients held out.
    """

    pretrain: tff.learning.templates.LearningProcess
    finetune: tff.learning.templates.LearningProcess


def build_personalized_fed_avg(
    model_fn: ModelOrFn,
    client_optimizer: tff.learning.optimizers.Optimizer | None = None,
    *,
    server_learning_rate: float = 1.0,
    server_momentum: float = 0.9,
    finetune_server_optimizer: tff.learning.optimizers.Optimizer | None = None,
) -> PersonalizedFedAvg:
    """Builds the two stages of Personalized FedAvg.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      client_optimizer: The optimizer of local steps; SGD with learning rate 0.02
        by default.
      server_learning_rate: alpha of FedAvg(E), >= 0.
      server_momentum: Momentum of FedAvg(E)'s server step, in [0, 1).
      finetune_server_optimizer: Reptile(K)'s server optimizer; Adam with learning
        rate 0.001 by default.

    Returns:
      The two processes: `pretrain` takes E epochs of every client's batches,
      `finetune` K batches.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    client_optimizer = client_optimizer or tff.learning.optimizers.build_sgdm(0.02)
    return PersonalizedFedAvg(
        pretrain=build_fed_avg_m(
            model_fn,
            client_optimizer,
            server_learning_rate=server_learning_rate,
            server_momentum=server_momentum,
        ),
        finetune=build_reptile(model_fn, client_optimizer, finetune_server_optimizer),
    )


def _build_reptile_stages(task, hparams):
    stage = Stage(
        name="reptile",
        process=build_reptile(
            task.model,
            tff.learning.optimizers.build_sgdm(hparams.client_learning_rate),
            algorithm.build_optimizer(
                hparams.server_optimizer,
                hparams.server_learning_rate,
                momentum=hparams.server_momentum,
            ),
            with_num_examples=algorithm.has_statistics(task.model),
        ),
        num_rounds=hparams.total_rounds,
        clients_per_round=hparams.clients_per_round,
        batches=BatchSpec(
            batch_size=hparams.client_batch_size,
            num_steps=hparams.client_steps_per_round,
            step_batching=hparams.step_batching,
            max_elements=hparams.max_elements_per_client,
        ),
    )
    return (stage,)


def _build_personalized_stages(task, hparams):
    processes = build_personalized_fed_avg(
        task.model,
        tff.learning.optimizers.build_sgdm(hparams.client_learning_rate),
        server_learning_rate=hparams.server_learning_rate,
        server_momentum=hparams.server_momentum,
        finetune_server_optimizer=algorithm.build_optimizer(
            hparams.finetune_server_optimizer,
            hparams.finetune_server_learning_rate,
            momentum=hparams.finetune_server_momentum,
        ),
    )
    pretrain_rounds, finetune_rounds = hparams.stage_rounds()

    def stage(name, process, num_rounds, **length):
        return Stage(
            name=name,
            process=process,
            num_rounds=num_rounds,
            clients_per_round=hparams.clients_per_round,
            batches=BatchSpec(
                batch_size=hparams.client_batch_size,
                max_elements=hparams.max_elements_per_client,
                **length,
            ),
        )

    return (
        stage(
            "fedavg",
            processes.pretrain,
            pretrain_rounds,
            num_epochs=hparams.client_epochs_per_round,
        ),
        stage(
            "reptile",
            processes.finetune,
            finetune_rounds,
            num_steps=hparams.finetune_steps,
        ),
    )


REPTILE = algorithm.Algorithm(
    name="reptile",
    title="Reptile",
    summary="move towards the result of K local steps on every client",
    paper="Nichol et al., 2018, arXiv 1803.02999",
    hparams=ReptileHParams,
    build_stages=_build_reptile_stages,
)

PERSONALIZED_FED_AVG = algorithm.Algorithm(
    name="personalized_fedavg",
    title="Personalized FedAvg",
    summary="FedAvg, then Reptile, for a model that personalizes well",
    paper=_PAPER,
    hparams=PersonalizedFedAvgHParams,
    build_stages=_build_personalized_stages,
    settings={algorithm.EVERY_TASK: {"client_epochs_per_round": 10}},
)
