"""What a task is, and how it is asked for: its options, where its data come from."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.clients.batching import (
    BatchSpec,
    Examples,
    batch_examples,
    derive_seed,
)
from tff_algos.hyperparameters import hparam, record
from tff_algos.models.variable_model import FunctionalVariableModel

Split = Literal["train", "test"]


@attrs.frozen(kw_only=True, eq=False)
class Task:
    """A federated learning problem.

    Attributes:
      name: The `--task` name.
      data_source: "tff" for the real data set, "generated" for the stand-in.
      train_client_ids: Clients that take part in training, in a fixed order.
      eval_client_ids: Clients on whose test examples models are evaluated, and
        that personalize. Where some train as well, their test examples are what
        is held out.
      examples: `(client_id, split) -> Examples`; raises `KeyError` for an unknown
        client. Cheap to call again: a bounded cache keeps recent clients.
      model: A pure `tff.learning.models.FunctionalModel` whose `input_spec` is
        that of `batch_examples`, and whose metrics are "loss", "accuracy",
        "num_examples" and "num_batches" (for sequences, accuracy is per
        non-padding token).
      test_examples: The data set's undivided test set, on which the model is
        evaluated during a run; None where the clients' own test examples, pooled,
        are the test set.
      seed: Decides what is drawn from the clients, for example a server's own data.
      notice: One line that the user must see, or None (for example that the
        generated stand-in is used, and how to get the real data set).
      train_labels: `client_id -> int [n]`, the classes of a training client's training
        examples, without reading the examples; None where labels are no classes of
        examples, or where that would take as long as reading them.
    """

    name: str
    data_source: Literal["tff", "generated"]
    train_client_ids: Sequence[str]
    eval_client_ids: Sequence[str]
    examples: Callable[[str, Split], Examples]
    model: tff.learning.models.FunctionalModel
    test_examples: Examples | None = None
    seed: int = 0
    notice: str | None = None
    train_labels: Callable[[str], np.ndarray] | None = None

    def model_fn(self) -> tff.learning.models.VariableModel:
        """Returns a new variable model, as TFF's `model_fn` arguments expect."""
        return FunctionalVariableModel(self.model)

    @property
    def dataset_name(self) -> str:
        """The name of the data set in outputs; tells the stand-in apart."""
        generated = self.data_source == "generated"
        return f"{self.name}_generated" if generated else self.name

    def client_dataset(
        self, client_id: str, split: Split, spec: BatchSpec, seed: int = 0
    ) -> tf.data.Dataset:
        """Returns one client's batches; the order depends on `seed` and the id."""
        return batch_examples(
            self.examples(client_id, split), spec, derive_seed(seed, client_id)
        )


class TaskError(ValueError):
    """A task cannot be made as asked; one line for the user."""


@record
class DataOptions:
    """Where a task's data come from; the same for every task.

    Attributes:
      data: "tff" for the real data set (downloaded when it is not cached),
        "generated" for the stand-in, "auto" for the real one if it is cached,
        else the stand-in.
      cache_dir: Folder of the real data sets, TFF's, tensorflow-datasets' or a user's
        own; None for TFF's own, `~/.tff`.
      seed: Decides the model's initial weights, which clients a task draws and how
        arrays are divided among clients; generated data do not depend on it.
    """

    data: Annotated[Literal["auto", "tff", "generated"], hparam()] = "auto"
    cache_dir: str | None = None
    seed: int = 0


@attrs.frozen(kw_only=True)
class TaskEntry:
    """One `--task` name.

    Attributes:
      name: The `--task` name.
      summary: One line for lists and help.
      options: Record (`tff_algos.hyperparameters.record`) of the task's own options, all
        with defaults.
      load: `(options, data_options) -> Task`.
      settings: The task's own defaults of hyperparameters by flag name (for
        example `client_learning_rate`), from the papers.
    """

    name: str
    summary: str
    options: type
    load: Callable[[Any, DataOptions], Task]
    settings: Mapping[str, Any]
