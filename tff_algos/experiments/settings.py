"""What runs share: cohorts, local steps, weights, optimizers. Each field is a flag."""

from typing import Annotated, Literal

import tensorflow_federated as tff

from tff_algos.clients.batching import BatchSpec, StepBatching
from tff_algos.experiments import (
    compressed_sums,
    private_aggregators,
    robust_aggregators,
)
from tff_algos.hyperparameters import HyperparameterError, hparam, record
from tff_algos.optimizers import build_optimizer

Sampling = Literal["fixed", "poisson"]
ClientWeightingName = Literal["num_examples", "uniform", "examples_processed"]


@record
class Cohort:
    """Rounds on sampled clients.

    Attributes:
      total_rounds: Rounds to train.
      clients_per_round: Clients sampled per round.
      client_batch_size: Examples per batch.
      max_elements_per_client: Limit on a client's examples per round; by default all are used.
      sampling: How a round's cohort is sampled: clients_per_round clients (fixed), or
        each client independently, with probability clients_per_round over the number of
        clients, so that cohorts differ in size (poisson).
    """

    total_rounds: Annotated[int, hparam(low=0, symbol="T")] = 30
    clients_per_round: Annotated[int, hparam(low=1, symbol="S")] = 10
    client_batch_size: Annotated[int, hparam(low=1, symbol="B")] = 20
    max_elements_per_client: Annotated[int | None, hparam(low=1)] = None
    sampling: Annotated[Sampling, hparam()] = "fixed"


@record
class LocalSteps:
    """How long clients train in a round.

    Attributes:
      client_epochs_per_round: Local epochs per round.
      client_steps_per_round: Local steps per round, instead of epochs.
      step_batching: Whether all batches of K local steps are full and may straddle passes
        over the examples (straddling), or a batch ends where a pass ends, with at most
        min(B, n_k) examples (per_pass).
    """

    client_epochs_per_round: Annotated[int, hparam(low=1, symbol="E")] = 1
    client_steps_per_round: Annotated[
        int | None, hparam(low=1, symbol="K", replaces="client_epochs_per_round")
    ] = None
    step_batching: Annotated[StepBatching, hparam()] = "straddling"


@record
class Weighting:
    """How clients are weighted.

    Attributes:
      client_weighting: Weight of a client's update in the mean: n_k, the number of its
        examples (num_examples); the same for all (uniform); or the number of examples in
        the batches of its local steps (examples_processed).
    """

    client_weighting: Annotated[ClientWeightingName, hparam()] = "num_examples"


@record
class Aggregation:
    """How clients' updates are combined, instead of their weighted mean.

    Attributes:
      aggregator: Robust aggregation of updates: median, trimmed_mean:SHARE (left out
        at each end), geometric_median, krum:F (F malicious clients per round), clip or
        zeroing (of updates longer than usual).
      compression: How clients' updates are sent in fewer bytes: quantize:BITS per number,
        rotate_quantize:BITS (after a random rotation) or topk:SHARE (only the numbers of
        largest magnitude).
      dp: Differential privacy of clients: clip every update and add Gaussian noise to
        their sum, at a trusted server (central). All clients then have the same weight.
      dp_clip: Clipping norm: a number, or adaptive for the median norm of updates,
        estimated privately.
      dp_noise_multiplier: Standard deviation of the noise, divided by the clipping
        norm.
      dp_target_epsilon: The epsilon after all rounds, instead of a noise multiplier.
      dp_delta: The delta of (epsilon, delta).
    """

    aggregator: Annotated[
        str | None,
        hparam(form=robust_aggregators.FORM, check=robust_aggregators.build),
    ] = None
    compression: Annotated[
        str | None, hparam(form=compressed_sums.FORM, check=compressed_sums.build)
    ] = None
    dp: Annotated[Literal["central"] | None, hparam()] = None
    dp_clip: Annotated[
        str,
        hparam(form=private_aggregators.CLIP_FORM, check=private_aggregators.clip_norm),
    ] = private_aggregators.ADAPTIVE
    dp_noise_multiplier: Annotated[float | None, hparam(above=0)] = None
    dp_target_epsilon: Annotated[
        float | None, hparam(above=0, replaces="dp_noise_multiplier")
    ] = None
    dp_delta: Annotated[float, hparam(above=0, below=1)] = private_aggregators.DELTA


@record
class ClientOptimizer:
    """The optimizer of local steps, which starts afresh in every round.

    Attributes:
      client_optimizer: Optimizer of local steps.
      client_learning_rate: Learning rate of local steps.
      client_momentum: Momentum of local steps; only with sgd.
    """

    client_optimizer: Annotated[Literal["sgd", "adam"], hparam()] = "sgd"
    client_learning_rate: Annotated[float, hparam(above=0, symbol="eta")] = 0.1
    client_momentum: Annotated[float, hparam(low=0, below=1)] = 0.0

    def __attrs_post_init__(self):
        check_momentum("client_momentum", self.client_momentum, self.client_optimizer)

    def build(self) -> tff.learning.optimizers.Optimizer:
        """Returns the optimizer; client works apply the decay of its rate."""
        return build_optimizer(
            self.client_optimizer,
            self.client_learning_rate,
            momentum=self.client_momentum,
        )


@record
class ServerOptimizer:
    """The optimizer of the server's step on the aggregate.

    Attributes:
      server_optimizer: Optimizer of the server's step.
      server_learning_rate: Server learning rate.
      server_learning_rate_decay: Decay factor of the server learning rate per period.
      server_learning_rate_decay_period: Rounds between decays of the server learning
        rate; rejected rounds do not count.
      server_momentum: Momentum of the server's step; only with sgd.
    """

    server_optimizer: Annotated[Literal["sgd", "adagrad", "adam", "yogi"], hparam()] = (
        "sgd"
    )
    server_learning_rate: Annotated[float, hparam(low=0, symbol="eta_g")] = 1.0
    server_learning_rate_decay: Annotated[float, hparam(above=0, high=1)] = 1.0
    server_learning_rate_decay_period: Annotated[int, hparam(low=1)] = 1
    server_momentum: Annotated[float, hparam(low=0, below=1, symbol="beta_1")] = 0.0

    def __attrs_post_init__(self):
        check_momentum("server_momentum", self.server_momentum, self.server_optimizer)

    def build(self) -> tff.learning.optimizers.Optimizer:
        """Returns the optimizer."""
        return build_optimizer(
            self.server_optimizer,
            self.server_learning_rate,
            self.server_learning_rate_decay,
            self.server_momentum,
            self.server_learning_rate_decay_period,
        )


def check_momentum(name: str, momentum: float, optimizer: str) -> None:
    """Raises `HyperparameterError` for a momentum that the optimizer would ignore."""
    if momentum and optimizer != "sgd":
        raise HyperparameterError(name, momentum, f"0, {optimizer} has no momentum")


def one_epoch(cohort: Cohort) -> BatchSpec:
    """Returns batches in which each example of a client occurs once."""
    return BatchSpec(
        batch_size=cohort.client_batch_size,
        num_epochs=1,
        max_elements=cohort.max_elements_per_client,
    )


def local_batches(cohort: Cohort, steps: LocalSteps) -> BatchSpec:
    """Returns the batches of E epochs, or of K steps where they are set."""
    by_steps = steps.client_steps_per_round is not None
    return BatchSpec(
        batch_size=cohort.client_batch_size,
        num_epochs=None if by_steps else steps.client_epochs_per_round,
        num_steps=steps.client_steps_per_round,
        max_elements=cohort.max_elements_per_client,
        step_batching=steps.step_batching,
    )
