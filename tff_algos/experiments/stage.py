"""A stage of a run: rounds of one learning process."""

from collections.abc import Callable

import attrs
import tensorflow_federated as tff

from tff_algos.clients.batching import BatchSpec, Examples
from tff_algos.clients.client_memory import client_data_fields


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
      num_examples: From a client's id to the number of examples that it weighs by; None
        for those that it trains on, n_k.

    What a client's data are is the process's to say: its batches alone, or data sets by
    name (`client_works.client_data`), of which `client_index` is its position among the
    task's training clients.
    """

    name: str
    process: tff.learning.templates.LearningProcess
    num_rounds: int
    clients_per_round: int | None
    batches: BatchSpec
    train_examples: Callable[[str], Examples] | None = None
    num_examples: Callable[[str], int] | None = None

    def count_examples(self, client_id: str, available: int) -> int:
        """Returns the number that a client which trains on `available` weighs by."""
        if self.num_examples is not None:
            return self.num_examples(client_id)
        return self.batches.num_examples(available)

    @property
    def client_data_fields(self) -> list[str]:
        """What clients' data consist of, by name; nothing if of batches alone."""
        return client_data_fields(self.process)
