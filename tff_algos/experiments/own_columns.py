"""Whether flags name what a file of one's own data has, before TensorFlow is imported."""

import contextlib
import os
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any

from tff_algos import column_roles, csv_files
from tff_algos.experiments.declarations import Declarations, Fields

_ROLES = ("label", "client_column", "features", "categories")
_ARRAYS = ("features", "label", "client_column")


def check(what: Declarations, task: str, settings: Mapping[str, Any]) -> None:
    """Checks the names of columns or arrays.

    Of a file that cannot be read, nothing is said here: the task says what is wrong.

    Args:
      what: What is declared.
      task: The value of `--task`.
      settings: All settings of the run.

    Raises:
      HyperparameterError: If the file does not have what a flag names.
    """
    form, _, argument = task.partition(":")
    check_names = {"csv": _check_columns, "npz": _check_arrays}.get(form)
    if task not in what.tasks and check_names is not None:
        path = pathlib.Path(os.path.expanduser(argument))
        with contextlib.suppress(csv_files.CsvError, zipfile.BadZipFile, OSError):
            check_names(path, what.task(task).fields, settings)


def _check_columns(
    path: pathlib.Path, fields: Fields, settings: Mapping[str, Any]
) -> None:
    there = csv_files.column_names(path)
    label, default = settings["label"], fields["label"].default
    column_roles.check_default("label", label, default, there, f"{path} has no column")
    roles = column_roles.from_flags(**{name: settings[name] for name in _ROLES})
    column_roles.chosen(roles, there, str(path))


def _check_arrays(
    path: pathlib.Path, fields: Fields, settings: Mapping[str, Any]
) -> None:
    with zipfile.ZipFile(path) as archive:
        there = [name.removesuffix(".npy") for name in archive.namelist()]
    if not there:
        return
    for argument in _ARRAYS:
        if (name := settings[argument]) is not None:
            column_roles.check_array(
                argument, name, fields[argument].default, there, path
            )
