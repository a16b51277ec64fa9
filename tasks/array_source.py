"""Reads datasets that are whole arrays, mainly of images.

A real dataset is the user's own `<name>.npz` in the cache folder, files there in the
dataset's own format, or a dataset that tensorflow-datasets has prepared there.
"""

import contextlib
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Literal

import attrs
import numpy as np
from numpy.lib import format as npy

from tasks import damage, download
from tasks.damage import Unfit
from tasks.task import DataOptions, TaskError
from tff_algos import messages

Source = Literal["tff", "generated", "own"]

_KEYS = ("x_train", "y_train", "x_test", "y_test")
_READ_BATCH_SIZE = 4096


@attrs.frozen(kw_only=True, eq=False)
class Arrays:
    """A dataset, as it is stored.

    Attributes:
      x_train: [n, ...]; of images [n, height, width, channels]. Published datasets are
        uint8, own data also float32 or float64.
      y_train: int32 [n], labels in [0, classes).
      x_test: [m, ...], like `x_train`.
      y_test: int32 [m]; every label of `y_train` is among them.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


@attrs.frozen(kw_only=True)
class OwnForm:
    """The dataset's own format, in addition to those common to all datasets.

    Attributes:
      names: Names of files or folders in the cache folder; each contains the whole
        dataset, and the first that exists is read.
      read: Maps a path to the arrays; raises `TaskError`.
      obtain: Maps `--cache_dir` to a path, downloading missing files; raises
        `TaskError`. None if tensorflow-datasets downloads.
    """

    names: tuple[str, ...]
    read: Callable[[str], Arrays]
    obtain: Callable[[str | None], str] | None = None


@attrs.frozen(kw_only=True)
class ArrayDataSet:
    """The description of an image dataset.

    Attributes:
      name: The `--task` name, and the stem of the npz file's name.
      tfds_name: Its name in tensorflow-datasets (features "image" and "label",
        splits "train" and "test"), or None if it is not there.
      image_shape: Height, width and channels.
      num_classes: Labels are in [0, num_classes).
      generate: Generates the stand-in.
      preprocess: Maps uint8 [n, height, width, channels] to the model's input, float32
        of the same shape.
      own_form: The dataset's own format, or None.
    """

    name: str
    tfds_name: str | None
    image_shape: tuple[int, int, int]
    num_classes: int
    generate: Callable[[], Arrays]
    preprocess: Callable[[np.ndarray], np.ndarray]
    own_form: OwnForm | None = None


def load_arrays(
    data_set: ArrayDataSet, data_options: DataOptions
) -> tuple[Source, Arrays, str | None]:
    """Returns the real dataset or its stand-in, according to `--data`.

    The order of preference is an npz file in the cache folder, the dataset's own
    format, and a dataset prepared by tensorflow-datasets. "auto" uses what exists and
    never downloads; "tff" downloads a missing dataset.

    Args:
      data_set: The dataset.
      data_options: Real data or the stand-in.

    Returns:
      The source ("tff" for the real dataset), the arrays, and a line that the
      user must see, or None.

    Raises:
      TaskError: If the real dataset is required but unavailable, or the existing one is
        invalid (the stand-in never replaces it silently).
    """
    if data_options.data == "generated":
        return "generated", data_set.generate(), None
    folder = download.cache_folder(data_options.cache_dir)
    path = npz_path(data_set, data_options.cache_dir)
    if os.path.exists(path):
        return "tff", read_npz(path, data_set), None
    own_path = _find_own_form(data_set, data_options)
    if own_path is not None:
        return "tff", data_set.own_form.read(own_path), None
    if data_options.data == "tff" or _is_prepared(data_set, folder):
        return "tff", _obtain_from_tfds(data_set, folder), None
    return "generated", data_set.generate(), _stand_in_notice(data_set, path, folder)


def _find_own_form(data_set: ArrayDataSet, data_options: DataOptions) -> str | None:
    """Returns the path of an existing or, if requested, downloaded dataset."""
    form, cache_dir = data_set.own_form, data_options.cache_dir
    if form is None:
        return None
    for name in form.names:
        path = download.cached_path(name, cache_dir)
        if os.path.exists(path):
            return path
    if data_options.data == "tff" and form.obtain is not None:
        return form.obtain(cache_dir)
    return None


def _stand_in_notice(data_set: ArrayDataSet, path: str, folder: str) -> str:
    """Returns the line that says which files are missing and how to get them."""
    form, missing = data_set.own_form, [path]
    if form is not None:
        missing += form.names
    if data_set.tfds_name is not None:
        missing.append("dataset prepared by tensorflow-datasets")
    notice = (
        f"--data=auto found no {' and no '.join(missing)} in {folder}, so "
        "generated data are used, not the real dataset"
    )
    if data_set.tfds_name is not None or (form is not None and form.obtain is not None):
        notice += "; --data=tff downloads the real one"
    return f"{notice}."


def npz_path(data_set: ArrayDataSet, cache_dir: str | None = None) -> str:
    """Returns the path for the user's own copy of the dataset."""
    return download.cached_path(f"{data_set.name}.npz", cache_dir)


def read_npz(path: str, data_set: ArrayDataSet) -> Arrays:
    """Reads a dataset file: x_train, y_train, x_test, y_test, as named in Keras.

    Images are uint8 [n, height, width, channels], where the last axis may be omitted
    for one channel; labels are integers [n] or [n, 1].

    Raises:
      TaskError: If the file cannot be read or has other content.
    """
    with _naming(path, data_set):
        return _as_arrays(_load_npz(path), data_set)


def checked(path: str, found: Mapping[str, Any], data_set: ArrayDataSet) -> Arrays:
    """Returns arrays from some other file, checked like those of an npz file.

    Args:
      path: The file, for the error message.
      found: `x_train`, `y_train`, `x_test` and `y_test`, as in `read_npz`.
      data_set: The description of the dataset.

    Raises:
      TaskError: If the arrays do not match the description.
    """
    with _naming(path, data_set):
        return _as_arrays(found, data_set)


@contextlib.contextmanager
def _naming(path: str, data_set: ArrayDataSet) -> Iterator[None]:
    """Converts errors in arrays to an error that names their file."""
    try:
        yield
    except Unfit as problem:
        raise TaskError(
            f"{path} is not a {data_set.name} dataset: {problem}; replace or remove it, "
            "or use --data=generated."
        ) from problem


def _load_npz(path: str) -> dict[str, np.ndarray]:
    """Reads the arrays by the names of `_KEYS`; raises `Unfit`."""
    with damage.reading():
        with open(path, "rb") as file:
            alone = file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX
        if alone:
            raise Unfit("it holds one array, not four by name")
        with zipfile.ZipFile(path) as archive:
            members = set(archive.namelist())
            missing = [key for key in _KEYS if f"{key}.npy" not in members]
            if missing:
                raise Unfit(f"it lacks {', '.join(missing)}")
            return {key: _read_member(archive, key) for key in _KEYS}


def _read_member(archive: zipfile.ZipFile, key: str) -> np.ndarray:
    """Reads one array; NumPy would allocate any size that the header declares."""
    name = f"{key}.npy"
    with damage.reading(f"the header of {key}"), archive.open(name) as file:
        shape, dtype = _read_header(file)
        held = archive.getinfo(name).file_size - file.tell()
    declared = math.prod(shape) * dtype.itemsize
    # Object arrays have no such size; NumPy rejects them.
    if declared != held and not dtype.hasobject:
        raise Unfit(f"{key} has {held} bytes, not {declared} as its header declares")
    with damage.reading(key), archive.open(name) as file:
        return npy.read_array(file, allow_pickle=False)


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Returns shape and dtype of a .npy file."""
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of .npy")
    shape, _, dtype = readers[version](file)
    return shape, dtype


def _as_arrays(found: Mapping[str, np.ndarray], data_set: ArrayDataSet) -> Arrays:
    """Checks and unifies arrays by the names of `_KEYS`; raises `Unfit`."""
    whole = {}
    for split in ("train", "test"):
        x_name, y_name = f"x_{split}", f"y_{split}"
        x = whole[x_name] = _images(x_name, found[x_name], data_set.image_shape)
        y = whole[y_name] = _labels(y_name, found[y_name], data_set.num_classes)
        if len(x) != len(y):
            raise Unfit(f"{x_name} has {len(x)} examples, {y_name} has {len(y)}")
    missing = np.setdiff1d(whole["y_train"], whole["y_test"])
    if len(missing):
        # Clients' own test sets need all labels of their training examples.
        raise Unfit(f"y_test lacks label {missing[0]}, which y_train has")
    return Arrays(**whole)


def _images(name: str, found: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    if found.dtype != np.uint8:
        raise Unfit(f"{name} is {found.dtype}, not uint8")
    valid = [shape, shape[:-1]] if shape[-1] == 1 else [shape]
    if found.shape[1:] not in valid or not len(found):
        expected = " or ".join(f"[n, {', '.join(map(str, one))}]" for one in valid)
        raise Unfit(f"{name} has shape {list(found.shape)}, not {expected}")
    return np.ascontiguousarray(found).reshape(-1, *shape)


def _labels(name: str, found: np.ndarray, num_classes: int) -> np.ndarray:
    if not np.issubdtype(found.dtype, np.integer):
        raise Unfit(f"{name} is {found.dtype}, not integers")
    if found.ndim == 0 or found.shape[1:] not in ((), (1,)):
        raise Unfit(f"{name} has shape {list(found.shape)}, not [n] or [n, 1]")
    lowest, highest = found.min(initial=0), found.max(initial=0)
    if lowest < 0 or highest >= num_classes:
        wrong = lowest if lowest < 0 else highest
        raise Unfit(f"{name} has label {wrong}, not in [0, {num_classes})")
    return found.reshape(-1).astype(np.int32)


def _is_prepared(data_set: ArrayDataSet, folder: str) -> bool:
    if data_set.tfds_name is None:
        return False
    # Check this first, because the import is slow.
    if not os.path.isdir(os.path.join(folder, data_set.tfds_name)):
        return False
    return _builder(data_set, folder).is_prepared()


def _builder(data_set: ArrayDataSet, folder: str) -> Any:
    """Returns the `tfds.core.DatasetBuilder`; raises `TaskError`."""
    import tensorflow_datasets as tfds  # Slow and rarely needed.

    try:
        return tfds.builder(data_set.tfds_name, data_dir=folder)
    # A damaged description of the prepared dataset may raise any exception.
    except Exception as error:
        raise _unreadable(os.path.join(folder, data_set.tfds_name), error) from error


def _unreadable(folder: str, error: Exception) -> TaskError:
    return TaskError(
        f"cannot read {folder} ({messages.one_line(error)}): remove that folder and use "
        "--data=tff, which prepares it anew, or use --data=generated."
    )


def _obtain_from_tfds(data_set: ArrayDataSet, folder: str) -> Arrays:
    """Downloads and prepares the dataset if it is missing, and reads it.

    tensorflow-datasets prepares it in a temporary folder and then renames that, so an
    interrupted preparation is not mistaken for a complete one.
    """
    if data_set.tfds_name is None:
        raise TaskError(
            f"--data=tff: {data_set.name} cannot be downloaded; {_remedy(data_set)}"
        )
    builder = _prepared(data_set, folder)
    try:
        return _as_arrays(_read_splits(builder), data_set)
    except Exception as error:
        raise _unreadable(builder.data_dir, error) from error


def _prepared(data_set: ArrayDataSet, folder: str) -> Any:
    """Returns a builder whose dataset is prepared."""
    try:
        builder = _builder(data_set, folder)
        if not builder.is_prepared():
            builder.download_and_prepare()
        return builder
    except TaskError:
        raise
    # A download, its unpacking or the disk may raise any exception.
    except Exception as error:
        # Another process may have prepared the same dataset first.
        if isinstance(error, OSError) and _is_prepared(data_set, folder):
            return _builder(data_set, folder)
        raise TaskError(
            f"tensorflow-datasets cannot download and prepare {data_set.tfds_name} in "
            f"{folder} ({messages.one_line(error)}): try again; or {_remedy(data_set)}"
        ) from error


def _remedy(data_set: ArrayDataSet) -> str:
    return (
        f"put {data_set.name}.npz (arrays {', '.join(_KEYS)}) into --cache_dir, or use "
        "--data=generated, which needs no download."
    )


def _read_splits(builder: Any) -> dict[str, np.ndarray]:
    found = {}
    for split in ("train", "test"):
        elements = builder.as_dataset(split=split, shuffle_files=False)
        batches = list(elements.batch(_READ_BATCH_SIZE).as_numpy_iterator())
        found[f"x_{split}"] = np.concatenate([batch["image"] for batch in batches])
        found[f"y_{split}"] = np.concatenate([batch["label"] for batch in batches])
    return found
