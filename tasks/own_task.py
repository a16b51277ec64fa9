"""Own data without code: `--task=csv:FILE`, `npz:FILE` and `folder:DIR`."""

import functools
import os
import pathlib
import re
import types
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import attrs
import numpy as np

from tasks import damage, own_arrays, own_data, own_images, own_table
from tasks import partition as partition_lib
from tasks.models.by_shape import ModelId
from tasks.task import DataOptions, Task, TaskEntry, TaskError
from tff_algos import column_roles, messages, paths
from tff_algos.hyperparameters import (
    HyperparameterError,
    check_replaced,
    hparam,
    record,
)

# Characters of a path; no system has longer ones.
_MAX_PATH = 4096
_SETTINGS = types.MappingProxyType(
    {
        "client_batch_size": 10,
        "client_epochs_per_round": 1,
        "client_learning_rate": 0.05,
        "clients_per_round": 5,
    }
)

# Features, labels, clients or None, and of a table what its features are, else None.
_Found = tuple[np.ndarray, np.ndarray, np.ndarray | None, Sequence[str] | None]


@record
class OwnOptions:
    """What becomes of own data.

    Attributes:
      model: Architecture: linear, mlp (two hidden layers of 200), and for images cnn
        (that of McMahan et al.) or lenet.
      partition: Partition of the examples, if the data do not name clients: iid:N,
        shards:K[:N] (of sorted labels) or dirichlet:ALPHA[:N]; iid:10 by default.
      client_test_fraction: Share of each client's examples that it does not train on.
      eval_client_fraction: Share of the clients that do not train; only they are
        evaluated. 0: all clients train and are evaluated.
      standardize: Whether every feature (for images, every channel) gets mean 0 and
        standard deviation 1 over all training examples.
    """

    model: Annotated[ModelId, hparam()] = "mlp"
    partition: Annotated[
        str | None, hparam(form=partition_lib.FORM, check=partition_lib.parse)
    ] = None
    client_test_fraction: Annotated[float, hparam(above=0, below=1)] = 0.2
    eval_client_fraction: Annotated[float, hparam(low=0, below=1)] = 0.0
    standardize: Annotated[bool, hparam()] = True


@record
class CsvOptions(OwnOptions):
    """The options of `--task=csv:FILE`.

    Attributes:
      label: The column of the classes, words or whole numbers.
      client_column: The column that names each row's client.
      features: Columns to learn from, separated by commas; put double quotes around a
        name that contains a comma. By default all others.
      categories: Categorical feature columns, separated by commas; they are one-hot
        encoded.
    """

    label: Annotated[str, hparam()] = "label"
    client_column: Annotated[str | None, hparam(replaces="partition")] = None
    features: Annotated[str | None, hparam()] = None
    categories: Annotated[str | None, hparam()] = None

    def __attrs_post_init__(self):
        _check_one_division(self)


@record
class NpzOptions(OwnOptions):
    """The options of `--task=npz:FILE`.

    Attributes:
      label: The array of the classes [n], words or whole numbers.
      client_column: The array that names each example's client [n].
      features: The array to learn from: [n, features], or images [n, height, width] or
        [n, height, width, channels].
    """

    label: Annotated[str, hparam()] = "y"
    client_column: Annotated[str | None, hparam(replaces="partition")] = None
    features: Annotated[str, hparam()] = "x"

    def __attrs_post_init__(self):
        _check_one_division(self)


@record
class FolderOptions(OwnOptions):
    """The options of `--task=folder:DIR`, which has images DIR/CLASS/IMAGE or
    DIR/CLIENT/CLASS/IMAGE."""


def _check_one_division(options: CsvOptions | NpzOptions) -> None:
    check_replaced("client_column", "partition", attrs.asdict(options))


def _read_csv(path: pathlib.Path, options: CsvOptions) -> _Found:
    table = own_table.read_csv(path)
    column_roles.check_default(
        "label",
        options.label,
        _default("label", options),
        table.columns,
        f"{path} has no column",
    )
    roles = column_roles.from_flags(
        options.label, options.client_column, options.features, options.categories
    )
    return *own_table.encode(table, roles), own_table.feature_names(table, roles)


def _default(argument: str, options: OwnOptions) -> Any:
    return getattr(attrs.fields(type(options)), argument).default


def _read_npz(path: pathlib.Path, options: NpzOptions) -> _Found:
    wanted = {
        argument: getattr(options, argument)
        for argument in ("features", "label", "client_column")
    }
    try:
        # Given a path, `is_zipfile` is False also where the file cannot be read.
        with damage.reading(), path.open("rb") as opened:
            is_archive = zipfile.is_zipfile(opened)
    except damage.Unfit as error:
        raise TaskError(f"{path}: {error}.") from error
    if not is_archive:
        raise TaskError(
            f"{path} is not an npz archive, which numpy.savez writes (a single array "
            "or a CSV file is not one)."
        )
    try:
        with damage.reading(), np.load(path, allow_pickle=False) as file:
            there = list(file.files)
            found = {n: _array(file, n) for n in wanted.values() if n in there}
    except damage.Unfit as error:
        raise TaskError(f"{path}: {error}.") from error
    if not there:
        raise TaskError(f"{path} holds no arrays.")
    for argument, name in wanted.items():
        if name is not None:
            default = _default(argument, options)
            column_roles.check_array(argument, name, default, there, path)
            _refuse_objects(argument, name, found[name])
    features, labels, clients = (found.get(name) for name in wanted.values())
    return features, labels, clients, None


def _array(file: np.lib.npyio.NpzFile, name: str) -> np.ndarray | None:
    """Returns an array of an archive; None if it holds Python objects."""
    try:
        return file[name]
    except ValueError as error:
        if "allow_pickle" in str(error):
            return None
        raise


def _refuse_objects(argument: str, name: str, found: np.ndarray | None) -> None:
    """Raises `HyperparameterError` for None, which stands for an array of objects."""
    if found is None:
        expected = "numbers or text"
        remedy = f"fill in missing values and save {name}.astype(str) or numbers"
        if argument == "features":
            expected, remedy = "numbers", f"save {name}.astype(float)"
        raise HyperparameterError(
            argument,
            name,
            f"{expected}, but that array holds Python objects: {remedy} instead",
        )


def _read_folder(path: pathlib.Path, options: FolderOptions) -> _Found:
    images, labels, clients = own_images.read(path)
    _check_class_folders(path, labels)
    if clients is not None and options.partition is not None:
        raise TaskError(
            f"--partition={options.partition}: {path} has a folder for each client, "
            "which divide the images."
        )
    return images, labels, clients, None


def _check_class_folders(path: pathlib.Path, names: np.ndarray) -> None:
    """Raises `TaskError` for class folders named by decimals or by unusual integers.

    Labels that are numbers are compared as such: 1 and 1.0 would be one class.
    """
    classes = np.unique(names)
    if own_arrays.as_numbers(classes).dtype.kind != "f":
        return
    for name in map(str, classes):
        if not re.fullmatch(r"0|-?[1-9]\d*", name):
            raise TaskError(
                f"{path}: the folder of a class is called {name}, expected words or whole "
                f"numbers: rename the folders, such as class_{name}."
            )


@attrs.frozen(kw_only=True)
class Format:
    """One form of own data.

    Attributes:
      name: What comes before the colon.
      argument: What comes behind it, for help.
      summary: One line for lists and help.
      options: The record of its options.
      read: From a path and the options to features, labels, clients and, of a table,
        what the features are.
    """

    name: str
    argument: str
    summary: str
    options: type
    read: Callable[[pathlib.Path, Any], _Found]

    def entry(self, argument: str) -> TaskEntry:
        """Returns the entry of a file or folder."""
        return TaskEntry(
            name=f"{self.name}:{argument}",
            summary=self.summary,
            options=self.options,
            load=functools.partial(
                self._load, pathlib.Path(os.path.expanduser(argument))
            ),
            settings=_SETTINGS,
        )

    def _load(
        self, path: pathlib.Path, options: OwnOptions, data_options: DataOptions
    ) -> Task:
        """Returns the task.

        Raises:
          TaskError: If the data cannot be read, or something does not fit.
          HyperparameterError: If an option names what the data do not have.
        """
        if data_options.data != "auto":
            raise TaskError(
                f"--data={data_options.data}: --task={self.name}:{path} is your own "
                "data, which have no other source."
            )
        fault = paths.fault(path, is_folder=self.argument == "DIR")
        if fault is None and not paths.is_utf8(path):
            fault = "its name is not in UTF-8: rename it"
        if fault is not None:
            # Not cut off: a path ends with the name.
            task = messages.shortened(f"{self.name}:{path}", limit=_MAX_PATH)
            raise TaskError(f"--task={task}: {fault}.")
        features, labels, clients, names = self.read(path, options)
        own_arrays.freeze(features)  # So that it is not copied.
        common = [field.name for field in attrs.fields(OwnOptions)]
        task = own_data.from_arrays(
            features,
            labels,
            clients,
            name=path.resolve().name if path.is_dir() else path.stem,
            seed=data_options.seed,
            **{name: getattr(options, name) for name in common},
        )
        if self.read is _read_folder and features.dtype != np.uint8:
            task = own_data.with_unit(task, own_images.MOST_OF_16_BITS)
        return task if names is None else own_data.with_feature_names(task, names)


FORMATS: Mapping[str, Format] = {
    each.name: each
    for each in (
        Format(
            name="csv",
            argument="FILE",
            summary="Your own table: a CSV file with column names in its first line",
            options=CsvOptions,
            read=_read_csv,
        ),
        Format(
            name="npz",
            argument="FILE",
            summary="Your own arrays: a NumPy archive of features and labels",
            options=NpzOptions,
            read=_read_npz,
        ),
        Format(
            name="folder",
            argument="DIR",
            summary="Your own images: DIR/CLASS/IMAGE or DIR/CLIENT/CLASS/IMAGE",
            options=FolderOptions,
            read=_read_folder,
        ),
    )
}
