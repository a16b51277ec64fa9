"""The report of a GPU check: a table for every section."""

import json
import pathlib

import attrs

from benchmarks.comparison import machine


@attrs.frozen
class Row:
    """One line of the report.

    Attributes:
      check: What was checked or measured.
      found: The outcome in words.
      passed: Whether the check passed; None for a measurement.
    """

    check: str
    found: str
    passed: bool | None = None


def markdown(sections: dict[str, list[Row]], heading: str) -> str:
    """Returns the report: a table for every section."""
    words = {True: "passed", False: "FAILED", None: ""}
    lines = ["# GPU check", "", heading]
    for name, rows in sections.items():
        lines += ["", f"## {name}", "", "| check | found | |", "|---|---|---|"]
        lines += [
            f"| {row.check} | {row.found.replace('|', '/')} | {words[row.passed]} |"
            for row in rows
        ]
    return "\n".join(lines) + "\n"


def write(folder: pathlib.Path, sections: dict[str, list[Row]], seconds: float) -> bool:
    """Writes report.md and results.json; returns whether no check failed."""
    failed = [
        f"{name}: {row.check}"
        for name, rows in sections.items()
        for row in rows
        if row.passed is False
    ]
    described = machine.describe()
    heading = (
        f"{described['processor']}, {described['cores']} cores; {seconds:.0f} s. "
        + (f"{len(failed)} failed: {'; '.join(failed)}." if failed else "All passed.")
    )
    text = markdown(sections, heading)
    (folder / "report.md").write_text(text, encoding="utf-8")
    content = {
        "machine": described,
        "seconds": seconds,
        "sections": {
            name: [attrs.asdict(row) for row in rows] for name, rows in sections.items()
        },
    }
    (folder / "results.json").write_text(json.dumps(content, indent=2), "utf-8")
    print(text)
    return not failed
