"""UCI's Adult: does a person earn more than 50,000 dollars a year?

Becker and Kohavi, "Adult", UCI Machine Learning Repository, 1996
(https://doi.org/10.24432/C5XW20); 32,561 people to train on, 16,281 to test. The two
clients, people with a doctorate (413 and 181) and all others, are the domains of
Mohri et al., "Agnostic federated learning", ICML 2019
(https://arxiv.org/abs/1902.00146); the settings are those of Hu et al., "Federated
learning meets multi-objective optimization" (https://arxiv.org/abs/2006.11489).
"""

import os
import types
from typing import Annotated, Literal

import attrs
import numpy as np

from tasks import adult_file, array_data, download, generated_adult, partition
from tasks.array_data import Division
from tasks.array_source import Arrays, Source
from tasks.models import linear
from tasks.task import DataOptions, Task, TaskEntry, TaskError
from tff_algos.hyperparameters import (
    Form,
    HyperparameterError,
    UnusableHyperparameterError,
    hparam,
    record,
)
from tff_algos.models.block_model import BlockModel

DOCTORATE = adult_file.feature("education", "Doctorate")

_FOLDER = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
TRAIN_FILE = download.PublishedFile(
    name="adult.data",
    url=f"{_FOLDER}adult.data",
    num_bytes=3974305,
    md5="5d7c39d7b8804f071cdd1f2a7c460872",
)
TEST_FILE = download.PublishedFile(
    name="adult.test",
    url=f"{_FOLDER}adult.test",
    num_bytes=2003153,
    md5="35238206dfdf7f1fe215bbb874adecdc",
)

_NUM_CLASSES = 2
_BY_DOCTORATE = "phd"
# The division of Hu et al.'s code, which their table reports: it uses one-based indices
# of people as zero-based ones, and a fifth of every client's people does not train.
_OFF_BY_ONE = "phd_off_by_one"
_FORMS = f"{_BY_DOCTORATE}, {_OFF_BY_ONE}, {partition.FORM.expected}"
_FORM = Form(f"{_BY_DOCTORATE}|{_OFF_BY_ONE}|{partition.PATTERN}", _FORMS)

_SETTINGS = types.MappingProxyType(
    {
        "client_batch_size": 10,
        "client_epochs_per_round": 1,
        "client_learning_rate": 0.01,
        "clients_per_round": 2,
    }
)


def _check_partition(value: str) -> None:
    if value not in (_BY_DOCTORATE, _OFF_BY_ONE):
        try:
            partition.parse(value)
        except HyperparameterError as error:
            raise HyperparameterError("partition", value, _FORMS) from error


@record
class AdultOptions:
    """The options of `--task=adult`.

    Attributes:
      model: Architecture: logistic regression.
      initializer: Initial weights: zeros, or uniform in +-1 / sqrt(99) like PyTorch's,
        drawn with --seed.
      partition: Partition of the people: phd (two clients, people with a doctorate and
        all others), phd_off_by_one (as in the code of Hu et al.: indices off by one,
        and 1/5 of each client's people unused), iid:N, shards:K[:N] (of sorted labels)
        or dirichlet:ALPHA[:N]; N clients, 100 if omitted.
      only_doctorate: Train on people with a doctorate alone; both groups are evaluated.
    """

    model: Annotated[Literal["linear"], hparam()] = "linear"
    initializer: Annotated[Literal["zeros", "uniform"], hparam()] = "zeros"
    partition: Annotated[str, hparam(form=_FORM, check=_check_partition)] = (
        _BY_DOCTORATE
    )
    only_doctorate: Annotated[bool, hparam()] = False

    def __attrs_post_init__(self):
        if self.only_doctorate and self.partition not in (_BY_DOCTORATE, _OFF_BY_ONE):
            raise UnusableHyperparameterError(
                "only_doctorate",
                True,
                f"with --partition={self.partition}: set {_BY_DOCTORATE} or {_OFF_BY_ONE}",
            )


def preprocess(features: np.ndarray) -> np.ndarray:
    """Returns the uint8 `features` as float32."""
    return features.astype(np.float32)


def load(options: AdultOptions, data_options: DataOptions) -> Task:
    """Returns the task.

    Examples are `x` float32 [n, 99], each 0 or 1, and `y` int32 [n], 1 for an income
    above 50,000 dollars. The clients are "phd" and "non_phd", whose own test examples
    are their groups in the test file; with another partition, clients are "client_000"
    and so on.

    Args:
      options: Model and partition.
      data_options: Real data or the stand-in.

    Raises:
      TaskError: If the real data are unavailable, invalid, or too few for the
        partition.
    """
    source, arrays, notice = _load_arrays(data_options)
    task = array_data.divided_task(
        arrays,
        _divide(arrays, options.partition, data_options.seed),
        name=ENTRY.name,
        source=source,
        preprocess=preprocess,
        model=_build_model(options.initializer, data_options.seed),
        seed=data_options.seed,
        notice=notice,
    )
    if options.only_doctorate:
        return attrs.evolve(task, train_client_ids=task.train_client_ids[:1])
    return task


def _build_model(initializer: str, seed: int) -> BlockModel:
    return linear.build_linear_model(
        adult_file.NUM_FEATURES,
        _NUM_CLASSES,
        seed=None if initializer == "zeros" else seed,
    )


def _load_arrays(data_options: DataOptions) -> tuple[Source, Arrays, str | None]:
    """Returns the source, the people, and a line that the user must see (or None)."""
    if data_options.data == "generated":
        return "generated", generated_adult.people(), None
    files, cache_dir = (TRAIN_FILE, TEST_FILE), data_options.cache_dir
    if data_options.data == "tff":
        paths = [download.obtain_published(file, cache_dir) for file in files]
        return "tff", _read(*paths), None
    paths = [download.cached_path(file.name, cache_dir) for file in files]
    missing = [path for path in paths if not os.path.exists(path)]
    if not missing:
        return "tff", _read(*paths), None
    notice = (
        f"--data=auto found no {' and no '.join(missing)}, so generated data "
        "are used, not the real dataset; --data=tff downloads the real one."
    )
    return "generated", generated_adult.people(), notice


def _read(train_path: str, test_path: str) -> Arrays:
    x_train, y_train = adult_file.read(train_path)
    x_test, y_test = adult_file.read(test_path)
    missing = np.setdiff1d(y_train, y_test)
    if len(missing):
        # Clients' own test sets need all labels of their training examples.
        raise TaskError(
            f"{test_path} has no income {'<=50K' if missing[0] == 0 else '>50K'}, "
            f"which {train_path} has; use whole files, or --data=generated."
        )
    return Arrays(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def _divide(arrays: Arrays, partition_text: str, seed: int) -> Division:
    if partition_text not in (_BY_DOCTORATE, _OFF_BY_ONE):
        return array_data.divide(arrays, partition_text, 0.0, seed)
    train = _by_doctorate(partition_text, "training", arrays.x_train)
    if partition_text == _OFF_BY_ONE:
        train = tuple(_as_published(people, len(arrays.x_train)) for people in train)
    return Division(
        client_ids=("phd", "non_phd"),
        train=train,
        test=_by_doctorate(partition_text, "test", arrays.x_test),
    )


def _as_published(people: np.ndarray, num_people: int) -> np.ndarray:
    """Returns the indices used for the `people` of a client in Hu et al.'s division.

    They are off by one, and only four fifths are used. Which ones is not known: the
    first ones in the order of a set come closest to the published figures.

    Raises:
      TaskError: If the client has fewer than two people.
    """
    if len(people) < 2:
        raise TaskError(
            f"--partition={_OFF_BY_ONE} takes four fifths of a client's people, and a "
            "client has a single one; use whole files, another partition, or "
            "--data=generated."
        )
    shifted = list(set(((people + 1) % num_people).tolist()))
    return np.sort(shifted[: len(shifted) * 4 // 5])


def _by_doctorate(
    partition_text: str, kind: str, features: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices of people with and without a doctorate."""
    has_doctorate = features[:, DOCTORATE] == 1
    if has_doctorate.all() or not has_doctorate.any():
        group = "without" if has_doctorate.all() else "with"
        raise TaskError(
            f"--partition={partition_text}: no {kind} example is of a person {group} a "
            "doctorate; use whole files, another partition, or --data=generated."
        )
    return np.flatnonzero(has_doctorate), np.flatnonzero(~has_doctorate)


ENTRY = TaskEntry(
    name="adult",
    summary="UCI's Adult: who earns over $50,000; two clients, with a doctorate or not",
    options=AdultOptions,
    load=load,
    settings=_SETTINGS,
)
