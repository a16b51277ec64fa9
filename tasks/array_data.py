"""Tasks of data sets that come as whole arrays, divided among clients.

Examples are divided by `tasks.partition` unless a data set has a division of its own;
the test set stays whole for evaluation during a run, and each client has a test set of
its own besides, drawn from it.
"""

from collections.abc import Callable, Sequence

import attrs
import numpy as np
import tensorflow_federated as tff

from tasks import array_source, client_examples, partition
from tasks.array_source import ArrayDataSet, Arrays, Source
from tasks.task import DataOptions, Split, Task
from tff_algos.clients.batching import Examples


@attrs.frozen(kw_only=True, eq=False)
class Division:
    """Which examples each client has.

    Attributes:
      client_ids: The clients, in a fixed order.
      train: For each client int64 indices of its training examples.
      test: For each client int64 indices of its test examples.
    """

    client_ids: tuple[str, ...]
    train: Sequence[np.ndarray]
    test: Sequence[np.ndarray]


def load_task(
    data_set: ArrayDataSet,
    data_options: DataOptions,
    *,
    partition_text: str,
    model: tff.learning.models.FunctionalModel,
) -> Task:
    """Returns the task of a data set that is divided among clients.

    Every client trains and is evaluated: on its own test set, whose labels follow
    those of its training examples. The undivided test set is the task's
    `test_examples`.

    Args:
      data_set: The data set.
      data_options: Real data or the stand-in; the seed decides the division.
      partition_text: The `--partition` value.
      model: Takes `data_set.preprocess`'s images.

    Raises:
      TaskError: If the real data cannot be had, are not what they should be, or are
        too few for the partition.
    """
    source, arrays, notice = array_source.load_arrays(data_set, data_options)
    return divided_task(
        arrays,
        divide(arrays, partition_text, data_options.seed),
        name=data_set.name,
        source=source,
        preprocess=data_set.preprocess,
        model=model,
        seed=data_options.seed,
        notice=notice,
    )


def divide(arrays: Arrays, partition_text: str, seed: int) -> Division:
    """Divides a data set as `--partition` says; clients are "client_000" and so on.

    Args:
      arrays: The data set; only its labels count.
      partition_text: The `--partition` value.
      seed: Another seed is another division by the same rule.

    Raises:
      HyperparameterError: If the text is no partition.
      TaskError: If there are too few examples for it.
    """
    spec = partition.parse(partition_text)
    train = partition.divide(arrays.y_train, spec, seed)
    test = partition.local_tests(train, arrays.y_train, arrays.y_test, seed)
    return Division(client_ids=client_ids(spec.num_clients), train=train, test=test)


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
    """Returns the task of a divided data set: every client trains and is evaluated.

    Args:
      arrays: The data set.
      division: Which of its examples each client has.
      name: The `--task` name.
      source: Where the arrays come from.
      preprocess: From uint8 [n, ...], as stored, to what the model takes.
      model: Takes what `preprocess` returns.
      seed: What decided the division.
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
    """Returns "client_000" and so on, with as many digits as the last one needs."""
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
        "train": (arrays.x_train, arrays.y_train, division.train),
        "test": (arrays.x_test, arrays.y_test, division.test),
    }

    def read(client_id: str, split: Split) -> Examples:
        x, y, parts = whole[split]
        indices = parts[numbers[client_id]]
        return preprocess(x[indices]), y[indices]

    return read


def _label_reader(arrays: Arrays, division: Division) -> Callable[[str], np.ndarray]:
    """Returns `client_id -> int32 [n]`, a client's training labels alone."""
    parts = dict(zip(division.client_ids, division.train, strict=True))
    return lambda client_id: arrays.y_train[parts[client_id]]


def _read_only(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    for array in arrays:
        array.flags.writeable = False
    return arrays


def standardised(
    images: np.ndarray, means: Sequence[float], deviations: Sequence[float]
) -> np.ndarray:
    """Scales images to [0, 1] and standardises every channel.

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
