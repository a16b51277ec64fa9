"""Which columns of a table, or arrays of an archive, are labels, clients and features."""

import collections
import csv
import pathlib
from collections.abc import Collection, Iterable
from typing import Any

import attrs

from tff_algos import messages
from tff_algos.hyperparameters import (
    HyperparameterError,
    MissingHyperparameterError,
)

_MAX_SHOWN = 20


@attrs.frozen(kw_only=True)
class Roles:
    """Which column is what.

    Attributes:
      label: The classes.
      client_column: Each row's client, or None.
      features: The columns to learn from; None for all others.
      categories: Those of them whose values become features of 0 and 1.
    """

    label: str
    client_column: str | None = None
    features: tuple[str, ...] | None = None
    categories: tuple[str, ...] = ()


def from_flags(
    label: str,
    client_column: str | None,
    features: str | Iterable[str] | None,
    categories: str | Iterable[str] | None,
) -> Roles:
    """Returns what flags name; `features` and `categories` as a CSV file's line, or lists.

    Raises:
      HyperparameterError: If a value is neither; names the argument.
    """
    return Roles(
        label=label,
        client_column=client_column,
        features=_split("features", features) or None,
        categories=_split("categories", categories),
    )


def _split(argument: str, value: str | Iterable[str] | None) -> tuple[str, ...]:
    value = value or ()
    if isinstance(value, str):
        try:
            (value,) = csv.reader([value], skipinitialspace=True)
        except csv.Error as error:
            expected = "columns' names separated by commas"
            raise HyperparameterError(argument, value, expected) from error
    return names(argument, value)


def names(argument: str, value: Any) -> tuple[str, ...]:
    """Returns the names of columns, from one name or a list of them.

    Raises:
      HyperparameterError: If the value is neither; names the argument.
    """
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise HyperparameterError(argument, value, "a column's name or a list of names")
    return tuple(map(str, value))


def chosen(roles: Roles, columns: Collection[str], table: str) -> list[str]:
    """Returns the columns to learn from.

    Args:
      roles: Which column is what.
      columns: The names of all columns.
      table: What the table is called in messages.

    Raises:
      HyperparameterError: If a column is not there, or is two things.
    """
    # A table may have thousands of columns, and each is looked up.
    columns = dict.fromkeys(columns)
    others = [c for c in columns if c not in (roles.label, roles.client_column)]
    of_features = others if roles.features is None else list(roles.features)
    asked = [("label", roles.label), ("client_column", roles.client_column)]
    asked += [("features", column) for column in of_features]
    asked += [("categories", column) for column in roles.categories]
    for argument, column in asked:
        if column is not None:
            check_there(argument, column, columns, f"a column of {table}")
    for argument, used, valid in (
        ("features", of_features, others),
        ("categories", roles.categories, of_features),
    ):
        there, counts = set(valid), collections.Counter(used)
        for column in used:
            if column not in there:
                expected = f"columns out of {listed(valid)}"
                raise HyperparameterError(argument, column, expected)
            if counts[column] > 1:
                raise HyperparameterError(argument, column, "each column once")
    if roles.client_column == roles.label:
        expected = "another column than the label's"
        raise HyperparameterError("client_column", roles.client_column, expected)
    return of_features


def check_there(argument: str, name: str, there: Collection[str], what: str) -> None:
    """Raises `HyperparameterError` unless a name is there; `what` is what all of them are."""
    if name not in there:
        raise HyperparameterError(argument, name, f"{what}: {listed(there)}")


def check_default(
    argument: str, value: Any, default: str | None, there: Collection[str], has_no: str
) -> None:
    """Raises `MissingHyperparameterError` if there is nothing of an option's default."""
    if value == default and default not in there:
        raise MissingHyperparameterError(
            argument,
            f"{has_no} {messages.shown(default)}, the default; expected one of "
            f"{listed(there)}",
        )


def check_array(
    argument: str,
    name: str,
    default: str | None,
    there: Collection[str],
    path: pathlib.Path,
) -> None:
    """Raises `HyperparameterError` if an archive lacks an array, given or by default."""
    check_default(argument, name, default, there, f"{path} has no array")
    check_there(argument, name, there, f"an array of {path}")


def listed(names: Collection[str]) -> str:
    """Returns names separated by commas; of many, the first."""
    short = (messages.shortened(name, 40) for name in names)
    quoted = [f'"{name}"' if "," in name else name or "''" for name in short]
    more = f", and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(quoted[:_MAX_SHOWN]) + more
