"""Tasks of datasets that are whole arrays, divided among clients.

Examples are divided by `tasks.partition`, unless a dataset has its own division. The
undivided test set is used for evaluation during a run; in addition, each client has its
own test set, drawn from it.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import attrs
import numpy as np
import tensorflow_federated as tff

from tasks import array_source, client_examples, partition
from tasks.array_source import ArrayDataSet, Arrays, Source
from tasks.task import DataOptions, Split, Task
from tff_algos.clients.batching import Examples
from tff_algos.hyperparameters import hparam, record


@attrs.frozen(kw_only=True, eq=False)
class Division:
    """The examples of each client.

    Attributes:
      client_ids: The clients, in a fixed order.
      train: For each client int64 indices of its training examples.
      test: For each client int64 indices of its test examples.
      test_of: The set that `test` are indices of: the dataset's test set, or its
        training set.
    """

    client_ids: tuple[str, ...]
    train: Sequence[np.ndarray]
    test: Sequence[np.ndarray]
    test_of: Split = "test"


@record
class ClientTests:
    """The clients' own test sets; options shared by tasks.

    Attributes:
      client_test_fraction: Share of each client's examples that are its test set, and
        which it does not train on; with 0, it is drawn from the dataset's test set,
        from the labels that the client has.
    """

    client_test_fraction: Annotated[float, hparam(low=0, below=1)] = 0.0


def load_task(
    data_set: ArrayDataSet,
    data_options: DataOptions,
    *,
    partition_text: str,
    client_test_fraction: float,
    model: tff.learning.models.FunctionalModel,
) -> Task:
    """Returns the task of a dataset that is divided among clients.

    Every client trains and is evaluated: on its own test set, whose labels follow
    those of its training examples. The undivided test set is the task's
    `test_examples`.

    Args:
      data_set: The dataset.
      data_options: Real data or the stand-in, and the seed of the division.
      partition_text: The `--partition` value.
      client_test_fraction: As in `ClientTests`.
      model: A model of `data_set.preprocess`'s images.

    Raises:
      TaskError: If the real data are unavailable, invalid, or too few for the
        partition.
    """
    source, arrays, notice = array_source.load_arrays(data_set, data_options)
    return divided_task(
        arrays,
        divide(arrays, partition_text, client_test_fraction, data_options.seed),
        name=data_set.name,
        source=source,
        preprocess=data_set.preprocess,
        model=model,
        seed=data_options.seed,
        notice=notice,
    )


def divide(
    arrays: Arrays, partition_text: str, client_test_fraction: float, seed: int
) -> Division:
    """Divides a dataset by `--partition`; clients are "client_000" and so on.

    Args:
      arrays: The dataset, of which only the labels are used.
      partition_text: The `--partition` value.
      client_test_fraction: As in `ClientTests`.
      seed: Seed of the division.

    Raises:
      HyperparameterError: If the text is not a valid partition.
      TaskError: If there are too few examples for it.
    """
    spec = partition.parse(partition_text)
    train = partition.divide(arrays.y_train, spec, seed)
    return with_tests(
        arrays, client_ids(spec.num_clients), train, client_test_fraction, seed
    )


def with_tests(
    arrays: Arrays,
    client_ids: tuple[str, ...],
    examples: Sequence[np.ndarray],
    client_test_fraction: float,
    seed: int,
) -> Division:
    """Gives every client its own test set.

    Args:
      arrays: The dataset, of which only the labels are used.
      client_ids: The clients.
      examples: For each client int64 indices of its examples in the training set.
      client_test_fraction: As in `ClientTests`.
      seed: Seed of the draws.
    """
    if client_test_fraction:
        train, test = partition.hold_out(examples, client_test_fraction, seed)
        return Division(client_ids=client_ids, train=train, test=test, test_of="train")
    test = partition.local_tests(examples, arrays.y_train, arrays.y_test, seed)
    return Division(client_ids=client_ids, train=examples, test=test)


def divided_task(
    arrays: Arrays,
    division: Division,
    *,
    name: str,
    source: Source,
    preprocess: Callable[[np.ndarray], np.ndarray],
    model: tff.learning.models.FunctionalModel,
    seed: int,
    notice: str | None,
) -> Task:
    """Returns the task of a divided dataset: every client trains and is evaluated.

    Args:
      arrays: The dataset.
      division: The examples of each client.
      name: The `--task` name.
      source: The source of the arrays.
      preprocess: Maps stored examples [n, ...] to the model's input.
      model: A model of `preprocess`'s results.
      seed: The seed of the division.
      notice: A line that the user must see, or None.
    """
    return Task(
        name=name,
        data_source=source,
        train_client_ids=division.client_ids,
        eval_client_ids=division.client_ids,
        examples=client_examples.cached(_reader(arrays, division, preprocess)),
        model=model,
        test_examples=_read_only(preprocess(arrays.x_test), arrays.y_test),
        seed=seed,
        notice=notice,
        train_labels=_label_reader(arrays, division),
    )


def client_ids(num_clients: int) -> tuple[str, ...]:
    """Returns "client_000" and so on, with as many digits as needed."""
    width = max(3, len(str(num_clients - 1)))
    return tuple(f"client_{number:0{width}d}" for number in range(num_clients))


def _reader(
    arrays: Arrays,
    division: Division,
    preprocess: Callable[[np.ndarray], np.ndarray],
) -> Callable[[str, Split], Examples]:
    """Returns `(client_id, split) -> Examples`, which preprocesses on demand."""
    numbers = {name: number for number, name in enumerate(division.client_ids)}
    whole = {
        "train": (arrays.x_train, arrays.y_train),
        "test": (arrays.x_test, arrays.y_test),
    }
    parts = {
        "train": (whole["train"], division.train),
        "test": (whole[division.test_of], division.test),
    }

    def read(client_id: str, split: Split) -> Examples:
        (x, y), indices_by_client = parts[split]
        indices = indices_by_client[numbers[client_id]]
        return preprocess(x[indices]), y[indices]

    return read


def _label_reader(arrays: Arrays, division: Division) -> Callable[[str], np.ndarray]:
    """Returns `client_id -> int32 [n]`, a client's training labels."""
    parts = dict(zip(division.client_ids, division.train, strict=True))
    return lambda client_id: arrays.y_train[parts[client_id]]


def _read_only(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    for array in arrays:
        array.flags.writeable = False
    return arrays


def standardized(
    images: np.ndarray, means: Sequence[float], deviations: Sequence[float]
) -> np.ndarray:
    """Scales images to [0, 1] and standardizes every channel.

    Args:
      images: uint8 [n, height, width, channels].
      means: One per channel, of values in [0, 1].
      deviations: One per channel.

    Returns:
      float32 of the same shape: (images / 255 - means) / deviations.
    """
    scale = 1.0 / (255.0 * np.asarray(deviations))
    shift = np.asarray(means) / np.asarray(deviations)
    return images * scale.astype(np.float32) - shift.astype(np.float32)
