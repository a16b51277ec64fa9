"""The report of a comparison: Markdown, CSV, plots, and one HTML page with all of it."""

import base64
import csv
import html
import pathlib
from collections.abc import Sequence

import attrs

from tff_algos.experiments import files
from tff_algos.experiments.comparison import figures, formats
from tff_algos.experiments.comparison.columns import Column, format_cell
from tff_algos.experiments.comparison.runs import Outcomes

TABLE_FILE = "table.md"
CSV_FILE = "runs.csv"
PAGE_FILE = "report.html"
_CURVES_FILE = "learning_curves.png"
_CLIENTS_FILE = "client_accuracy.png"
_NOTE = "Mean (standard deviation) over seeds."
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em;
       padding: 0 1em; color: #222; }
table { border-collapse: collapse; }
th, td { border-bottom: 1px solid #ccc; padding: .3em .8em; text-align: right; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; }
"""


@attrs.frozen
class Table:
    """The table of a comparison.

    Attributes:
      header: The columns' names.
      lines: The cells of each row.
      notes: What the table does not say: seeds, and settings that were left out.
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

    The last column is what flag files say was published, if any does.
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
    header = ["", *(column.header for column in columns), *(["published"] * published)]
    return Table(header, lines, notes(outcomes))


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
    return found


def write(
    folder: pathlib.Path, title: str, columns: Sequence[Column], outcomes: Outcomes
) -> Table:
    """Writes all of the report and returns the table.

    Args:
      folder: Where to write it.
      title: What is compared.
      columns: The table's columns.
      outcomes: The results.
    """
    table = build_table(columns, outcomes)
    with files.replacing(folder / TABLE_FILE) as file:
        file.write(table.markdown)
    _write_runs(folder / CSV_FILE, columns, outcomes)
    plots = _draw(folder, outcomes)
    with files.replacing(folder / PAGE_FILE) as file:
        file.write(_page(title, table, plots))
    return table


def _write_runs(
    path: pathlib.Path, columns: Sequence[Column], outcomes: Outcomes
) -> None:
    with files.replacing(path) as file:
        writer = csv.writer(file)
        writer.writerow(["row", "folder", *(column.name for column in columns)])
        for row, results in outcomes.items():
            for each in results:
                if each is not None:
                    values = [column.value(each) for column in columns]
                    writer.writerow([row.label, each.folder, *values])


def _draw(folder: pathlib.Path, outcomes: Outcomes) -> list[pathlib.Path]:
    drawn = []
    curves = figures.learning_curves(outcomes)
    if curves:
        drawn.append(folder / _CURVES_FILE)
        figures.save(figures.plot_curves(curves), drawn[-1])
    clients = {
        row.label: figures.client_accuracies(results)
        for row, results in outcomes.items()
    }
    clients = {label: kinds for label, kinds in clients.items() if kinds}
    if clients:
        drawn.append(folder / _CLIENTS_FILE)
        figures.save(figures.plot_clients(clients), drawn[-1])
    return drawn


def _page(title: str, table: Table, plots: Sequence[pathlib.Path]) -> str:
    """Returns the report as one HTML page that needs no other file."""

    def line(kind: str, texts: Sequence[str]) -> str:
        return "".join(f"<{kind}>{html.escape(text)}</{kind}>" for text in texts)

    body = "\n".join(f"<tr>{line('td', texts)}</tr>" for texts in table.lines)
    images = "\n".join(
        f'<img alt="{path.stem}" src="data:image/png;base64,'
        f'{base64.b64encode(path.read_bytes()).decode()}">'
        for path in plots
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<style>{_STYLE}</style></head><body>
<h1>{html.escape(title)}</h1>
<table><thead><tr>{line("th", table.header)}</tr></thead><tbody>
{body}
</tbody></table>
{line("p", table.notes)}
{images}
</body></html>
"""
