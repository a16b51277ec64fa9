"""Finds what is wrong with any row before the first one runs."""

import contextlib
import io
import sys
from collections.abc import Sequence
from typing import TextIO

import tasks
from tff_algos.experiments import catalog, launch, launch_options, run_flags
from tff_algos.experiments.comparison.errors import ComparisonError
from tff_algos.experiments.comparison.rows import Row, parse_flags
from tff_algos.experiments.console import USER_ERRORS
from tff_algos.experiments.declarations import Declarations
from tff_algos.experiments.errors import RunError
from tff_algos.experiments.launch_options import Launch
from tff_algos.experiments.plugins import Choices
from tff_algos.experiments.progress import Progress
from tff_algos.hyperparameters import HyperparameterError


class _Notices(io.StringIO):
    """Keeps lines; what progress bars draw goes to the terminal."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal.isatty()

    def write(self, text: str) -> int:
        # Bars move by line feeds too; those after a line's text end it.
        is_blank = not text.strip("\n") and self.getvalue()[-1:] in ("", "\n")
        if is_blank or "\r" in text or "\x1b" in text:
            return self._terminal.write(text)
        return super().write(text)

    def flush(self) -> None:
        self._terminal.flush()


def check(rows: Sequence[Row], what: Declarations, choices: Choices) -> dict[Row, str]:
    """Makes all that each row would run, with its data, but runs nothing.

    What tasks say of their data is printed, once.

    Args:
      rows: Rows that are to be run.
      what: What there is to set.
      choices: The algorithms and tasks.

    Returns:
      The name of each row's dataset in outputs.

    Raises:
      ComparisonError: If a row cannot run; the message names it.
    """
    if not rows:
        return {}
    number = f"{len(rows)} rows" if len(rows) > 1 else "1 row"
    print(f"checking {number}", file=sys.stderr, flush=True)
    datasets, said = {}, set()
    with Progress(len(rows), unit="check") as progress:
        for row in rows:
            datasets[row], notices = _checked(row, what, choices)
            for line in notices:
                if line not in said:
                    progress.note(line)
                said.add(line)
            progress.advance(row.label, {})
    return datasets


def _checked(row: Row, what: Declarations, choices: Choices) -> tuple[str, list[str]]:
    """Checks a row; returns its dataset and what is printed meanwhile."""
    printed = _Notices(sys.stderr)
    try:
        with contextlib.redirect_stderr(printed):
            dataset = _check(row, what, choices)
    except HyperparameterError as error:
        raise ComparisonError(f"{row.label}: --{error}") from error
    except (RunError, *USER_ERRORS) as error:
        raise ComparisonError(f"{row.label}: {error}") from error
    return dataset, printed.getvalue().splitlines()


def _check(row: Row, what: Declarations, choices: Choices) -> str:
    values = parse_flags(row.arguments, what)
    options = Launch.of_flags(values.flag_values_dict())
    launch_options.check_runtime(options)
    spec = launch.build_spec(
        catalog.get(values.algo, choices.algorithms),
        tasks.get(values.task, choices.tasks),
        run_flags.settings_of(values, what),
        options,
    )
    return spec.task.dataset_name
