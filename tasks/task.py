"""Tasks, their options, and the source of their data."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import origin as origin_lib
from tff_algos import execution
from tff_algos.clients.batching import (
    BatchSpec,
    Examples,
    batch_examples,
    derive_seed,
)
from tff_algos.hyperparameters import hparam, record
from tff_algos.models.variable_model import FunctionalVariableModel

# What evaluations need of a model's metrics.
METRICS = ("loss", "accuracy", "num_examples", "num_batches")

Split = Literal["train", "test"]


@attrs.frozen(kw_only=True, eq=False)
class Task:
    """A federated learning problem.

    Attributes:
      name: The `--task` name.
      data_source: "tff" for the real dataset, "generated" for the stand-in, "own" for
        a user's own data.
      train_client_ids: Clients that take part in training, in a fixed order.
      eval_client_ids: Clients that personalize and on whose test examples models are
        evaluated. If a client also trains, only its test examples are held out.
      examples: `(client_id, split) -> Examples`; raises `KeyError` for an unknown
        client. Cheap to call again: a bounded cache keeps recent clients.
      model: A pure `tff.learning.models.FunctionalModel` whose `input_spec` is
        that of `batch_examples`, and whose metrics are "loss", "accuracy",
        "num_examples" and "num_batches" (for sequences, accuracy is per token;
        padding does not count, nor do tokens that the task leaves unscored).
      test_examples: The dataset's undivided test set, on which the model is evaluated
        during a run; None if the clients' pooled test examples are the test set.
      seed: Seed of random draws from the clients, for example of a server's own data.
      notice: One line that the user must see, or None (for example that the
        generated stand-in is used, and how to get the real dataset).
      train_labels: `client_id -> int [n]`, the classes of a training client's training
        examples, without reading the examples; None if labels are not classes of
        examples or if it would take as long as reading the examples.
      origin: How another process reads `examples`; None to send them to it.
      fingerprint: Tells apart tasks of the same name, if no flags do: a digest of the
        user's own data or of the options of `load_task`, and, after a "-", what differs
        by seed; in runs by name also `origin.identity` of real data. "" if flags say all.
      encoding: How the user's own data are encoded: `classes`, in the order of the
        model's outputs, the features' `mean` and `deviation`, and of a table their
        names, `features`; else None.
    """

    name: str
    data_source: Literal["tff", "generated", "own"]
    train_client_ids: Sequence[str]
    eval_client_ids: Sequence[str]
    examples: Callable[[str, Split], Examples]
    model: tff.learning.models.FunctionalModel
    test_examples: Examples | None = None
    seed: int = 0
    notice: str | None = None
    train_labels: Callable[[str], np.ndarray] | None = None
    origin: origin_lib.Origin | None = None
    fingerprint: str = ""
    encoding: Mapping[str, Any] | None = None

    def model_fn(self) -> tff.learning.models.VariableModel:
        """Returns a new variable model, as TFF's `model_fn` arguments expect."""
        return FunctionalVariableModel(self.model)

    @property
    def dataset_name(self) -> str:
        """The name of the dataset in outputs, distinct for the stand-in."""
        generated = self.data_source == "generated"
        return f"{self.name}_generated" if generated else self.name

    def client_dataset(
        self, client_id: str, split: Split, spec: BatchSpec, seed: int = 0
    ) -> tf.data.Dataset:
        """Returns one client's batches; the order depends on `seed` and the id.

        Args:
          client_id: One of `train_client_ids` or `eval_client_ids`.
          split: "train" or "test".
          spec: How examples become batches.
          seed: Seed of their order.

        Returns:
          Batches `(x [b, ...], y [b, ...])` of the model's `input_spec`.
        """
        return self.batches(client_id, split, spec, derive_seed(seed, client_id))

    def batches(
        self, client_id: str, split: Split, spec: BatchSpec, seed: int
    ) -> tf.data.Dataset:
        """Returns one client's batches, of `batch_examples`.

        With an `origin`, examples are read when the batches are, in the process that
        reads these.
        """
        if self.origin is None:
            return batch_examples(self.examples(client_id, split), spec, seed)
        x, y = self.model.input_spec
        arguments = (self.origin, client_id, split, spec, seed)
        return execution.RecipeDataset((x, y), origin_lib.batches, *arguments)


class TaskError(ValueError):
    """A task cannot be created as requested; the message is one line."""


@record
class DataOptions:
    """The source of a task's data; the same options for every task.

    Attributes:
      data: "tff" for the real dataset (downloaded if not cached), "generated" for the
        stand-in, "auto" for the real dataset if cached, else the stand-in.
      cache_dir: Folder of the real datasets: TFF's, tensorflow-datasets' or a user's
        own; None for TFF's default, `~/.tff`.
      seed: Seed of the model's initial weights, of drawing a task's clients and of
        dividing arrays among clients; generated data do not depend on it.
    """

    data: Annotated[Literal["auto", "tff", "generated"], hparam()] = "auto"
    cache_dir: str | None = None
    seed: Annotated[int, hparam(low=0)] = 0


@attrs.frozen(kw_only=True)
class Pace:
    """What a model learns in few rounds of a task's or an algorithm's default settings.

    Attributes:
      rounds: A run of fewer rounds is told so before the first.
      text: What to expect of it, and which flags help; one line.
    """

    rounds: int
    text: str


@attrs.frozen(kw_only=True)
class TaskEntry:
    """One `--task` name.

    Attributes:
      name: The `--task` name.
      summary: One line for lists and help.
      options: Record (`tff_algos.hyperparameters.record`) of the task's options, all
        with defaults.
      load: `(options, data_options) -> Task`.
      settings: The task's defaults of hyperparameters by flag name (for example
        `client_learning_rate`), from the papers.
      pace: What a model learns in few rounds; None if it learns visibly in the default
        number of rounds.
    """

    name: str
    summary: str
    options: type
    load: Callable[[Any, DataOptions], Task]
    settings: Mapping[str, Any]
    pace: Pace | None = None
