"""All that a run is, and its results."""

import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import attrs
import matplotlib.figure
import numpy as np
import tensorflow_federated as tff
import tf_keras

from tasks.task import Task
from tff_algos.experiments import (
    cohorts,
    evaluation,
    malicious_clients,
    plots,
    private_aggregators,
)
from tff_algos.experiments.stage import Stage
from tff_algos.hyperparameters import HyperparameterError, hparam, record
from tff_algos.models.keras_model import build_keras_model


@record
class RunOptions:
    """How a run is run and evaluated, whatever its algorithm and task.

    Attributes:
      seed: Seed of the initial weights, of drawing a task's clients or dividing its
        examples among them, of cohorts and of the order of examples.
      rounds_per_eval: Rounds between evaluations; 0 for none.
      rounds_per_checkpoint: Rounds between checkpoints.
      eval_clients: Number of clients that are evaluated; 0 for all.
      seen_eval_clients: For tasks that hold out clients: how many training clients to
        evaluate and personalize as well, on their own test examples. By default none or,
        if clients keep models, eval_clients of those that took part.
      initial_model: Results folder of a run of the same model, whose final weights this
        run starts from.
      rounds_per_personalization: Rounds between personalizations of the evaluated
        clients; 0 for once, at the end.
      personalization_epochs: Epochs for which each evaluated client personalizes its
        copy of the model.
      personalization_batch_size: Examples per batch of personalization.
      personalization_learning_rate: Learning rate of personalization; by default the
        clients' or, if the algorithm has none, the task's default for clients (0.02 for
        a `Task` object).
      personalization_optimizer: Optimizer of personalization; by default the clients'.
      personalization_momentum: Momentum of personalization, only with sgd; by default the
        clients' momentum, or 0 if --personalization_optimizer is set.
      track_improvement: Measure in every round the share of its clients whose training
        loss does not rise; this adds two evaluations of each client.
      client_dropout: Probability that a sampled client drops out of a round before it
        reports.
      attack: What malicious clients do: bias:VALUE (added to reported losses),
        scale:VALUE (times every loss) or scale_update:VALUE (times the update, after
        honest training).
      malicious_clients: Malicious clients: ids separated by commas, or the share of the
        training clients, in (0, 1], drawn with --seed; by default one client.
      malicious_every_round: Malicious clients take part in every round, in place of
        others.
    """

    seed: Annotated[int, hparam(low=0)] = 0
    rounds_per_eval: Annotated[int, hparam(low=0)] = 5
    rounds_per_checkpoint: Annotated[int, hparam(low=1)] = 10
    eval_clients: Annotated[int, hparam(low=0)] = 20
    seen_eval_clients: Annotated[int | None, hparam(low=0)] = None
    initial_model: Annotated[str | None, hparam()] = None
    rounds_per_personalization: Annotated[int, hparam(low=0)] = 0
    personalization_epochs: Annotated[int, hparam(low=0, symbol="P")] = 10
    personalization_batch_size: Annotated[int, hparam(low=1)] = 20
    personalization_learning_rate: Annotated[float | None, hparam(above=0)] = None
    personalization_optimizer: Annotated[Literal["sgd", "adam"] | None, hparam()] = None
    personalization_momentum: Annotated[float | None, hparam(low=0, below=1)] = None
    track_improvement: Annotated[bool, hparam()] = False
    client_dropout: Annotated[float, hparam(low=0, below=1)] = 0.0
    attack: Annotated[
        str | None, hparam(form=malicious_clients.FORM, check=malicious_clients.parse)
    ] = None
    malicious_clients: Annotated[str | None, hparam()] = None
    malicious_every_round: Annotated[bool, hparam()] = True


@attrs.frozen(kw_only=True)
class RunSpec:
    """All that a run is.

    Attributes:
      title: What the plots and the table are headed with.
      stages: The stages, in order.
      task: The task.
      output_dir: Where results go; made where it is missing.
      hyperparameters: All that decides the run's numbers, by flag name; a run
        resumes only with the same.
      config: What else `config.json` holds.
      personalization_optimizer: Fine-tunes the model on the clients that are evaluated.
      options: How it is run and evaluated.
      attack: What malicious clients do; the stages are then built for its task.
      gradients_per_batch: About how many gradients of the loss a local batch takes.
      guarantee: What its rounds say about a client; None without privacy.
      initial_weights: What the first stage starts from; None for the model's own.
      resume: Whether to resume the run in `output_dir`, if there is one.

    Raises:
      HyperparameterError: If `client_dropout` or `track_improvement` is set for pooled
        training, or `seen_eval_clients` where all evaluated clients train.
      CohortSizeError: If a cohort is larger than the training clients.
    """

    title: str
    stages: Sequence[Stage]
    task: Task
    output_dir: pathlib.Path = attrs.field(converter=pathlib.Path)
    hyperparameters: Mapping[str, Any]
    config: Mapping[str, Any] = attrs.field(factory=dict)
    personalization_optimizer: tff.learning.optimizers.Optimizer
    options: RunOptions = attrs.field(factory=RunOptions)
    attack: malicious_clients.Attack | None = None
    gradients_per_batch: float = 1.0
    guarantee: private_aggregators.Guarantee | None = None
    initial_weights: tff.learning.models.ModelWeights | None = None
    resume: bool = True

    def __attrs_post_init__(self):
        sizes = [stage.clients_per_round for stage in self.stages]
        for size in sizes:
            if size is not None:
                cohorts.check_cohort_size(self.task.train_client_ids, size)
        # A stage without clients may precede one with clients.
        pooled = not any(sizes)
        if self.options.client_dropout and pooled:
            raise HyperparameterError(
                "client_dropout",
                self.options.client_dropout,
                "0 for an algorithm that trains on pooled data, not on clients",
            )
        if self.options.track_improvement and pooled:
            raise HyperparameterError(
                "track_improvement",
                True,
                "False for an algorithm that trains on pooled data, not on clients",
            )
        trains, evaluates = map(
            set, (self.task.train_client_ids, self.task.eval_client_ids)
        )
        if self.options.seen_eval_clients and evaluates <= trains:
            raise HyperparameterError(
                "seen_eval_clients",
                self.options.seen_eval_clients,
                f"0 with --task={self.task.name}: all clients that it evaluates train",
            )

    @property
    def total_rounds(self) -> int:
        """Rounds of all stages."""
        return sum(stage.num_rounds for stage in self.stages)

    def seen_eval_client_ids(self) -> list[str]:
        """Returns the training clients evaluated in addition to the task's own."""
        count, candidates = self.options.seen_eval_clients, self.task.train_client_ids
        # With --eval_overlap, some of the task's own train as well.
        others = set(self.task.eval_client_ids)
        if self.keeps_models:
            taking_part = self._participants()
            candidates = [c for c in candidates if c in taking_part]
            if count is None and not set(self.task.train_client_ids) & others:
                count = self.options.eval_clients or len(candidates)
        if not count:
            return []
        return evaluation.choose_clients(
            [c for c in candidates if c not in others], count, self.options.seed
        )

    @property
    def keeps_models(self) -> bool:
        """Whether clients keep models in the last stage, which is then evaluated."""
        return self.stages[-1].keeps_models

    def _participants(self) -> set[str]:
        """Returns the clients that take part in some round of the last stage."""
        last = self.stages[-1]
        rounds = range(self.total_rounds - last.num_rounds + 1, self.total_rounds + 1)
        options = self.options
        found = set()
        for round_num in rounds:
            found.update(
                cohorts.cohort_ids(
                    last,
                    self.task,
                    options.seed,
                    round_num,
                    self.attack,
                    options.client_dropout,
                )
            )
        return found

    def eval_client_ids(self) -> list[str]:
        """Returns the clients that are evaluated."""
        return evaluation.choose_clients(
            self.task.eval_client_ids, self.options.eval_clients, self.options.seed
        )


@attrs.frozen(kw_only=True)
class RunResult:
    """The results of a run.

    Attributes:
      spec: What was run.
      rows: The rows of `metrics.csv`, one per round.
      weights: The final model's weights, as TFF has them.
      clients: The evaluated clients' results, each with `client_id`,
        `num_train_examples`, `num_test_examples`, and `accuracy` and `loss`, tuples of
        P + 1 numbers: before personalization and after each of its P epochs, NaN of
        clients without test examples; empty if the run was stopped.
      summary: What `summary.json` holds; None if the run was stopped.
      stopped_by: The signal that stopped it, or None.
      rounds_done: Rounds that are done and saved.
      warning: One line on rounds and clients that were excluded and why, or None.
      learned_nothing: Whether every round was rejected; the model is the initial one.
    """

    spec: RunSpec = attrs.field(repr=False)
    rows: Sequence[Mapping[str, Any]] = attrs.field(repr=False)
    weights: tff.learning.models.ModelWeights = attrs.field(repr=False)
    clients: Sequence[evaluation.ClientResult] = attrs.field(default=(), repr=False)
    summary: Mapping[str, Any] | None = None
    stopped_by: int | None = None
    rounds_done: int
    warning: str | None = None
    learned_nothing: bool = False

    @functools.cached_property
    def metrics(self) -> Mapping[str, np.ndarray]:
        """The columns of `metrics.csv`: arrays of one number or text per round, [T].

        NaN stands where a round has no value, such as of an evaluation.
        """
        names = dict.fromkeys(name for row in self.rows for name in row)
        return {
            name: np.asarray([row.get(name, np.nan) for row in self.rows])
            for name in names
        }

    def keras_model(self) -> tf_keras.Model:
        """Returns the final model as a Keras model with the final weights."""
        return build_keras_model(self.spec.task.model, self.weights)

    def plot(self) -> matplotlib.figure.Figure:
        """Draws the learning curves."""
        return plots.learning_curves(self.rows, self.spec.title)
