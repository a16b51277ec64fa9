"""The report of a comparison: Markdown, CSV, plots, and one HTML page with all of it."""

import csv
import pathlib
from collections.abc import Sequence

import attrs

from tff_algos.experiments import files
from tff_algos.experiments.comparison import figures, formats, page
from tff_algos.experiments.comparison.columns import Column, format_cell
from tff_algos.experiments.comparison.runs import Outcomes
from tff_algos.experiments.figures import save

TABLE_FILE = "table.md"
CSV_FILE = "runs.csv"
PAGE_FILE = "report.html"
_CURVES_FILE = "learning_curves.png"
_CLIENTS_FILE = "client_accuracy.png"
_NOTE = "Mean (population standard deviation) over seeds."
_PUBLISHED = "published number, or note"


@attrs.frozen
class Table:
    """The table of a comparison.

    Attributes:
      header: The columns' names.
      lines: The cells of each row.
      notes: What the table does not say: seeds, and settings that were left out or
        that differ.
    """

    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    @property
    def markdown(self) -> str:
        """The table and its notes in Markdown."""
        return "\n\n".join([formats.table(self.header, self.lines), *self.notes]) + "\n"

    def for_width(self, width: int) -> str:
        """Returns it with a line for each column where it is wider than `width`.

        It stays as it is if that would not make it narrower.
        """
        header, *lines = zip(self.header, *self.lines, strict=True)
        turned = Table(header, lines, self.notes).markdown
        widths = [_width(text) for text in (self.markdown, turned)]
        return turned if width < widths[0] > widths[1] else self.markdown


def _width(text: str) -> int:
    return max(len(line) for line in text.splitlines() if line.startswith("|"))


def build_table(columns: Sequence[Column], outcomes: Outcomes) -> Table:
    """Returns the table, with a line for each row.

    The last column is what the first lines of flag files say, if any says something:
    published numbers, or notes.
    """
    lines = []
    published = any(row.published for row in outcomes)
    for row, results in outcomes.items():
        left = [each for each in results if each is not None]
        failed = len(results) - len(left)
        label = row.label
        if failed:
            label += f" ({failed} of {len(results)} failed)"
        values = [
            format_cell(column, [column.value(each) for each in left])
            if left
            else "failed"
            for column in columns
        ]
        lines.append([label, *values, *([row.published or ""] * published)])
    header = ["", *(column.header for column in columns), *([_PUBLISHED] * published)]
    return Table(header, lines, [*notes(outcomes), *_tenths(columns, outcomes)])


def notes(outcomes: Outcomes) -> list[str]:
    found = [_NOTE] if any(len(results) > 1 for results in outcomes.values()) else []
    for row in outcomes:
        if row.left_out:
            names = ", ".join(f"--{name}" for name in row.left_out)
            found.append(f"{row.label} does not have {names}.")
        if row.own_defaults:
            found.append(
                f"{row.label} has defaults of its own: {', '.join(row.own_defaults)}. "
                "As flags of the command they hold for all rows."
            )
    return [*found, *_differences(outcomes), *_attacks(outcomes)]


def _differences(outcomes: Outcomes) -> list[str]:
    """Says in which flags rows differ, if some are existing runs.

    Of rows that were run, names and defaults of their own say it.
    """
    if not any(row.folders for row in outcomes):
        return []
    found = page.differing_datasets(outcomes) + page.differing_flags(outcomes)
    return [f"Rows differ in {', '.join(found)}."] if found else []


def _tenths(columns: Sequence[Column], outcomes: Outcomes) -> list[str]:
    """Says what a tenth of few clients is, where the table shows one."""
    shown = any(column.name.endswith("_decile") for column in columns)
    runs = [each for results in outcomes.values() for each in results if each]
    if shown and any(each.summary.get("num_clients", 10) < 10 for each in runs):
        return ["Of fewer than 10 clients, a tenth is one client."]
    return []


def _attacks(outcomes: Outcomes) -> list[str]:
    """Says which rows are under which attack."""
    rows: dict[str, list[str]] = {}
    for row, results in outcomes.items():
        settings = next((each.settings for each in results if each is not None), {})
        if flags := page.attack_flags(settings):
            rows.setdefault(flags, []).append(row.label)
    return [
        f"Under attack, {flags}: "
        f"{'all rows' if len(labels) == len(outcomes) else ', '.join(labels)}."
        for flags, labels in rows.items()
    ]


def write(folder: pathlib.Path, columns: Sequence[Column], outcomes: Outcomes) -> Table:
    """Writes all of the report to a folder and returns the table."""
    table = build_table(columns, outcomes)
    with files.replacing(folder / TABLE_FILE) as file:
        file.write(table.markdown)
    _write_runs(folder / CSV_FILE, columns, outcomes)
    plots = _draw(folder, outcomes)
    with files.replacing(folder / PAGE_FILE) as file:
        file.write(page.render(outcomes, table.header, table.lines, table.notes, plots))
    return table


def _write_runs(
    path: pathlib.Path, columns: Sequence[Column], outcomes: Outcomes
) -> None:
    with files.replacing(path) as file:
        writer = csv.writer(file)
        names = [column.name for column in columns]
        writer.writerow(["row", "seed", "folder", *names])
        for row, results in outcomes.items():
            for each in results:
                if each is not None:
                    values = [column.value(each) for column in columns]
                    seed = each.settings.get("seed")
                    writer.writerow([row.label, seed, each.folder, *values])


def _draw(folder: pathlib.Path, outcomes: Outcomes) -> list[pathlib.Path]:
    drawn = []
    subject = page.shared_subject(outcomes)
    outcomes = page.with_attacks_in_labels(outcomes)
    curves = figures.learning_curves(outcomes)
    if curves:
        drawn.append(folder / _CURVES_FILE)
        save(figures.plot_curves(curves, subject), drawn[-1])
    clients = {
        row.label: figures.client_accuracies(results)
        for row, results in outcomes.items()
    }
    clients = {label: kinds for label, kinds in clients.items() if kinds}
    if clients:
        drawn.append(folder / _CLIENTS_FILE)
        save(figures.plot_clients(clients, subject), drawn[-1])
    return drawn
