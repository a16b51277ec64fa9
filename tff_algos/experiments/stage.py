"""A stage of a run: rounds of one learning process."""

from collections.abc import Callable
from typing import Literal

import attrs
import tensorflow_federated as tff

from tff_algos.clients.batching import BatchSpec, Examples
from tff_algos.clients.client_memory import client_data_fields


@attrs.frozen(kw_only=True)
class Stage:
    """Rounds of one learning process; model weights carry over between stages.

    The process determines the type of a client's data: batches or named datasets
    (`clients.client_data`), with `client_index` the client's index among the task's
    training clients.

    Attributes:
      name: The stage's name in logs and metrics.
      process: The process to run in every round.
      num_rounds: The number of rounds, >= 0.
      clients_per_round: Size of the cohort; None for one client that holds pooled
        examples.
      sampling: "fixed" for cohorts of that size, "poisson" for cohorts whose expected
        size it is.
      batches: How each client's examples become batches.
      train_examples: Maps a client's id to its training examples; None for the task's
        training examples.
      pooled_examples: What the one client holds that holds pooled examples; None for
        those of all training clients.
      num_examples: Maps a client's id to the number of examples that it is weighted by;
        None for its number of training examples, n_k.
    """

    name: str
    process: tff.learning.templates.LearningProcess
    num_rounds: int
    clients_per_round: int | None
    batches: BatchSpec
    sampling: Literal["fixed", "poisson"] = "fixed"
    train_examples: Callable[[str], Examples] | None = None
    pooled_examples: Examples | None = None
    num_examples: Callable[[str], int] | None = None

    def count_examples(self, client_id: str, available: int) -> int:
        """Returns the weight of a client that trains on `available` examples."""
        if self.num_examples is not None:
            return self.num_examples(client_id)
        return self.batches.num_examples(available)

    @property
    def keeps_models(self) -> bool:
        """Whether clients keep models, or parts of them, between rounds."""
        # By what it can do: a process may be wrapped.
        return hasattr(self.process, "get_personal_weights")

    @property
    def shares_weights(self) -> bool:
        """Whether clients share weights; the server's model is trained only then."""
        return getattr(self.process, "shares_weights", True)

    @property
    def client_data_fields(self) -> list[str]:
        """The names of the fields of clients' data; none if only batches."""
        return client_data_fields(self.process)
