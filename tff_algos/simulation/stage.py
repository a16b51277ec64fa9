"""A stage of a run: rounds of one learning process."""

from collections.abc import Callable

import attrs

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow_federated as tff

from tff_algos.simulation.batching import BatchSpec, Examples


@attrs.frozen(kw_only=True)
class Stage:
    """Rounds of one learning process; model weights cross from stage to stage.

    Attributes:
      name: The stage's name in logs and metrics.
      process: What runs in every round.
      num_rounds: How many rounds it runs, >= 0.
      clients_per_round: Size of the cohort; None for one client that holds the
        pooled examples of all training clients.
      batches: How each client's examples become batches.
      train_examples: From a client's id to the examples that it trains on; None for
        the task's training examples.
      with_client_index: Whether a client's data are `examples`, its batches, and
        `client_index`, a data set of one number: its position among the task's
        training clients. If not, they are its batches alone.
    """

    name: str
    process: tff.learning.templates.LearningProcess
    num_rounds: int
    clients_per_round: int | None
    batches: BatchSpec
    train_examples: Callable[[str], Examples] | None = None
    with_client_index: bool = False
