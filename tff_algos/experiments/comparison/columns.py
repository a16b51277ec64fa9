"""The columns of a comparison's table: numbers from the results of a run."""

import functools
import json
import math
import pathlib
import statistics
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from tff_algos import messages
from tff_algos.experiments.comparison import column_names, formats
from tff_algos.experiments.comparison.errors import ComparisonError, flag_error
from tff_algos.experiments.comparison.existing_runs import read_settings
from tff_algos.experiments.errors import RunError
from tff_algos.experiments.metric_names import BYTES_DOWN, BYTES_UP
from tff_algos.experiments.metrics_log import read_rows, rounds_to_target
from tff_algos.experiments.results import TARGET_ACCURACIES

ACCURACY = "eval/accuracy"
_NUM_FINAL_EVALUATIONS = 10
_TITLES = types.MappingProxyType(
    {
        f"last:{ACCURACY}": "held-out accuracy",
        "initial_accuracy": "clients' accuracy",
        "initial_accuracy_worst_decile": "worst tenth of clients",
        "personalized_accuracy": "personalized accuracy",
        "own_accuracy": "accuracy of own models",
        "personalization_seen.initial_accuracy": "training clients' accuracy",
        "personalization_seen.personalized_accuracy": (
            "training clients' personalized accuracy"
        ),
        "personalization_seen.own_accuracy": "training clients' accuracy of own models",
        f"{BYTES_DOWN}_per_round": "MB down per round",
        f"{BYTES_UP}_per_round": "MB up per round",
        "seconds": "seconds per round",
    }
)
# Shown where no columns are asked for and the runs have them.
_DEFAULTS = tuple(_TITLES)
_NUM_TARGETS = 2


@attrs.frozen(eq=False)
class Results:
    """The results of a run.

    Attributes:
      folder: The results folder.
      summary: The numbers of summary.json by dotted key; None for null.
      rows: The rows of metrics.csv.
      dataset: The dataset's name in outputs; None if the summary does not say it.
      settings: The flags of the run, from config.json.
    """

    folder: pathlib.Path
    summary: Mapping[str, float | None]
    rows: Sequence[Mapping[str, Any]]
    dataset: str | None = None
    settings: Mapping[str, Any] = attrs.field(factory=dict)

    def series(self, metric: str, flag: str, value: str) -> list[float]:
        """Returns a column of metrics.csv, in the order of rounds, without NaN.

        Raises:
          ComparisonError: If there is no such column; the message names `--flag=value`.
        """
        found = [row[metric] for row in self.rows if metric in row]
        if not found or not all(isinstance(number, (int, float)) for number in found):
            numbers = {
                n for r in self.rows for n, v in r.items() if not isinstance(v, str)
            }
            choices = f"one of {', '.join(sorted(numbers))} ({self.folder}/metrics.csv)"
            raise flag_error(flag, value, choices)
        return [number for number in found if not math.isnan(number)]


def read_results(folder: pathlib.Path) -> Results:
    """Reads the results that a run wrote to a folder.

    Raises:
      ComparisonError: If they are not those of a completed run, or cannot be read.
    """
    path = folder / "metrics.csv"
    try:
        rows = read_rows(path)
        path = folder / "summary.json"
        summary = json.loads(path.read_text("utf-8"))
        if not isinstance(summary, dict):
            raise TypeError("it holds no object")
    except RunError as error:
        # What helps a run that resumes would not help here.
        reason = str(error).partition(" Repair it")[0]
        remedy = f"remove {folder} to run it again, or leave it out"
        raise ComparisonError(f"{reason} Repair it, {remedy}.") from error
    except (OSError, ValueError, TypeError) as error:
        reason = messages.one_line(error)
        raise ComparisonError(f"{path} cannot be read: {reason}.") from error
    numbers = dict(_numbers(summary.get("personalization", {})))
    numbers |= _numbers(summary)
    return Results(folder, numbers, rows, summary.get("dataset"), read_settings(folder))


def _numbers(value: Any, key: str = "") -> Iterator[tuple[str, float | None]]:
    """Yields the numbers and nulls in a JSON value by dotted key."""
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, inner in items:
            yield from _numbers(inner, f"{key}.{name}" if key else str(name))
    elif value is None or isinstance(value, (int, float)):
        # Summaries of older versions have NaN in place of null.
        yield key, None if value is None or math.isnan(value) else value


@attrs.frozen(eq=False)
class Column:
    """A column of the table.

    Attributes:
      name: The name in --columns.
      value: Returns a run's value; None if the run did not reach it.
    """

    name: str
    value: Callable[[Results], float | None]

    @property
    def is_share(self) -> bool:
        """Whether it is shown in percent: an accuracy, or a share of clients."""
        if self.name.startswith("rounds_to"):
            return False
        return "accuracy" in self.name or "improved_clients" in self.name

    @property
    def is_bytes(self) -> bool:
        """Whether it is shown in megabytes."""
        return self.name in (f"{BYTES_DOWN}_per_round", f"{BYTES_UP}_per_round")

    @property
    def header(self) -> str:
        """What it is called in the table, with its unit."""
        kind, _, argument = self.name.partition(":")
        if kind == "rounds_to":
            return f"rounds to {100 * float(argument):g} %"
        title = _TITLES.get(self.name, self.name)
        return f"{title}, %" if self.is_share else title

    def if_any(self) -> "Column":
        """Returns the column that is empty for runs without it, instead of an error.

        A personalized accuracy after no epoch, which is the initial one, is none.
        """
        after = self.name.replace("personalized_accuracy", "accuracy_by_epoch.1")

        def value(results: Results) -> float | None:
            if after != self.name and after not in results.summary:
                return None
            return self.or_none().value(results)

        return attrs.evolve(self, value=value)

    def or_none(self) -> "Column":
        """Returns the column whose value is None for runs without it, not an error."""

        def value(results: Results) -> float | None:
            return None if _missing(self, results) else self.value(results)

        return attrs.evolve(self, value=value)

    def format(self, value: float) -> str:
        """Returns a value formatted for the table."""
        if self.is_share:
            return f"{100 * value:.2f}"
        if self.name.startswith("rounds_to"):
            return f"{value:.1f}".removesuffix(".0")
        if self.is_bytes:
            return formats.number(value / 1e6)
        return formats.number(value)


def _final(values: Sequence[float]) -> float:
    return statistics.fmean(values[-_NUM_FINAL_EVALUATIONS:])


_SERIES_COLUMNS = {"final": _final, "last": lambda values: values[-1], "best": max}


def parse_column(name: str) -> Column:
    """Returns the column for a name in --columns.

    Raises:
      ComparisonError: If the kind of column is unknown or its argument is invalid.
    """
    kind, argument = column_names.parse(name)
    if kind == column_names.SECONDS:
        return Column(name, _seconds)
    if kind == column_names.SUMMARY:
        return Column(name, functools.partial(_summary_value, name))
    if kind == column_names.ROUNDS_TO:
        return Column(name, functools.partial(_rounds_to, name, float(argument)))
    statistic = _SERIES_COLUMNS[kind]
    if kind == "best" and argument.endswith("loss"):
        statistic = min
    return Column(name, functools.partial(_series_value, name, argument, statistic))


def default_columns(results: Sequence[Results]) -> list[Column]:
    """Returns the columns to show of runs if none are asked for, which any run has.

    Rounds are given to the highest two usual accuracies that any run reached.
    """
    columns = [*map(parse_column, _DEFAULTS)]
    reached = [
        target
        for target in TARGET_ACCURACIES
        if any(
            rounds_to_target(each.rows, ACCURACY, [target])[f"{target:g}"]
            for each in results
        )
    ]
    after = columns.index(next(c for c in columns if c.is_bytes))
    columns[after:after] = [
        parse_column(f"rounds_to:{target:g}") for target in reached[-_NUM_TARGETS:]
    ]
    columns = [column.if_any() for column in columns]
    return [
        column
        for column in columns
        if any(column.value(each) is not None for each in results)
    ]


def columns_of_any(
    columns: Sequence[Column], results: Sequence[Results]
) -> tuple[list[Column], dict[str, ComparisonError]]:
    """Returns the columns that any of the runs has, and errors for the others by name.

    The columns returned are empty for runs without them.
    """
    found, errors = [], {}
    for column in columns:
        missing = [error for each in results if (error := _missing(column, each))]
        if len(missing) < len(results) or not results:
            found.append(column.or_none())
        else:
            errors[column.name] = missing[0]
    return found, errors


def _missing(column: Column, results: Results) -> ComparisonError | None:
    """Returns the error for a column that a run does not have; None if it does."""
    try:
        column.value(results)
    except ComparisonError as error:
        return error
    return None


def _series_value(
    name: str,
    metric: str,
    statistic: Callable[[Sequence[float]], float],
    results: Results,
) -> float | None:
    values = results.series(metric, "columns", name)
    return statistic(values) if values else None


def _seconds(results: Results) -> float | None:
    return _series_value("seconds", "seconds", statistics.median, results)


def _rounds_to(name: str, target: float, results: Results) -> int | None:
    results.series(ACCURACY, "columns", name)  # An error if nothing was evaluated.
    (reached,) = rounds_to_target(results.rows, ACCURACY, [target]).values()
    return reached


def _summary_value(name: str, results: Results) -> float | None:
    # The parts of a key may be joined by "." or "/": final_metrics/eval/accuracy.
    by_dots = {key.replace("/", "."): value for key, value in results.summary.items()}
    if name.replace("/", ".") not in by_dots:
        choices = f"one of {', '.join(results.summary)}"
        raise flag_error("columns", name, f"{choices} ({results.folder}/summary.json)")
    return by_dots[name.replace("/", ".")]


def format_cell(column: Column, values: Sequence[float | None]) -> str:
    """Returns "mean (std)" over seeds, and "k of n" if some values are None."""
    reached = [value for value in values if value is not None]
    if not reached:
        return "-"
    cell = column.format(statistics.fmean(reached))
    if len(reached) > 1:
        cell += f" ({column.format(float(np.std(reached)))})"
    if len(reached) < len(values):
        cell += f", {len(reached)} of {len(values)}"
    return cell
