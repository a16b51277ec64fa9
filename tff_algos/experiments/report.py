"""Printed output: the table of a finished run, and lists of algorithms and tasks."""

import sys
import textwrap
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tff_algos.experiments.declarations import (
    Algorithm,
    Declarations,
    Fields,
    Task,
    resolve_pair,
)
from tff_algos.experiments.metric_names import (
    BYTES_DOWN,
    BYTES_UP,
    WORKERS_DOWN,
    WORKERS_UP,
)
from tff_algos.hyperparameters import REQUIRED

# From here on, a loss is shown with four significant digits.
_MANY_DIGITS = 1e4
# Characters of a line of help that leave it readable.
_NARROWEST = 40


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _metric(name: str, value: float | None) -> str:
    if value is None:
        return "none"
    if name.endswith("accuracy"):
        return _percent(value)
    return f"{value:.4f}" if abs(value) < _MANY_DIGITS else f"{value:.4g}"


def _size(num_bytes: float) -> str:
    """Returns a number of bytes with three digits, in units of 1,000."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            # Twice, because 999.9 alone would become 1e+03.
            return f"{float(f'{num_bytes / scale:.3g}'):g} {unit}"
    return f"{num_bytes:g} B"


def text_table(rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Returns rows of text as aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (indent + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def results_table(title: str, summary: Mapping[str, Any]) -> str:
    """Returns the final table of a run, given its summary."""
    rows = [("rounds", str(summary["rounds"]))]
    final = summary["final_metrics"]
    for name, label in (
        ("train/loss", "training loss, last round"),
        ("train/accuracy", "training accuracy, last round"),
        ("eval/accuracy", "held-out accuracy, all examples"),
    ):
        if name in final:
            rows.append((label, _metric(name, final[name])))
    if private := summary.get("privacy"):
        shown = f"({private['epsilon']:.3g}, {private['delta']:g})"
        rows.append(("privacy of a client, (epsilon, delta)", shown))
    people = summary["personalization"]
    if people["num_clients"]:
        clients = f"{people['num_clients']} of {summary['evaluation_clients']}"
        rows += [("clients evaluated", clients), *_people_rows(people)]
    seen = summary.get("personalization_seen", {"num_clients": 0})
    if seen["num_clients"]:
        rows.append(("training clients evaluated", str(seen["num_clients"])))
        rows += _people_rows(seen)
    if summary["improved_clients"] is not None:
        share = _percent(summary["improved_clients"])
        rows.append(("clients no worse off, mean over rounds", share))
    of = {
        "num_rejected_rounds": ("rounds rejected", summary["rounds"]),
        "num_non_finite_clients": (
            "client updates excluded, not finite",
            summary["participations"],
        ),
    }
    for name, count in summary["excluded"].items():
        if count and name in of:
            label, total = of[name]
            rows.append((label, f"{count} of {total}"))
        elif count:
            rows.append((name.replace("_", " "), str(count)))
    if summary["rounds_per_second"]:
        rows.append(("rounds per second", f"{summary['rounds_per_second']:.3g}"))
    for label, names in _EXCHANGED.items():
        if f"{names[0]}_per_round" in summary:
            sent, received = (_size(summary[f"{name}_per_round"]) for name in names)
            rows.append((label, f"{sent}, {received}"))
    rows.append(("peak memory", _memory(**summary["peak_memory_mb"])))
    return f"\n{title}\n{text_table(rows)}"


def _memory(python: int, runtime_processes: int) -> str:
    found = f"{python} MB"
    if runtime_processes:
        found += f", and {runtime_processes} MB in the runtime's processes"
    return found


_EXCHANGED = types.MappingProxyType(
    {
        "sent to clients and received per round": (BYTES_DOWN, BYTES_UP),
        "sent to workers and received per round": (WORKERS_DOWN, WORKERS_UP),
    }
)
_KINDS = types.MappingProxyType(
    {
        "initial": "initial accuracy",
        "personalized": "personalized accuracy",
        "own": "accuracy of own models",
    }
)


def _people_rows(people: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the rows on the accuracies of one group of clients."""
    rows = []
    kinds = ["initial"]
    if len(people["accuracy_by_epoch"]) > 1:
        kinds.append("personalized")
    if "own_accuracy" in people:
        kinds.append("own")
    for kind in kinds:
        mean, std = people[f"{kind}_accuracy"], people[f"{kind}_accuracy_std"]
        rows.append(
            (
                f"{_KINDS[kind]}, mean (std) over clients",
                f"{_percent(mean)} ({_percent(std)})",
            )
        )
        worst, best = (
            _percent(people[f"{kind}_accuracy_{end}_decile"])
            for end in ("worst", "best")
        )
        # A tenth of few clients is one of them.
        which = "client" if people["num_clients"] < 10 else "tenth of clients"
        rows.append((f"  worst and best {which}", f"{worst}, {best}"))
    return rows


def catalog(
    algorithms: Iterable[Algorithm],
    tasks: Iterable[Task],
    columns: int = sys.maxsize,
) -> str:
    """Returns the lists of algorithms and tasks, of at most `columns` a line."""
    return (
        f"Algorithms (--algo)\n{_summaries(algorithms, columns)}\n\n"
        f"Tasks (--task)\n{_summaries(tasks, columns)}\n\n"
        "--list with --algo=..., --task=... or both shows their flags and defaults;\n"
        "--help shows all flags and, in brackets, which algorithms and tasks use\n"
        "them; compare --help explains how to compare algorithms."
    )


def _summaries(offered: Iterable[Algorithm | Task], columns: int) -> str:
    rows = [(each.name, each.summary) for each in offered]
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(_wrapped(f"  {n:{width}}  ", text, columns) for n, text in rows)


def settings(
    declarations: Declarations,
    algo: str | None,
    task: str | None,
    launch: Sequence[tuple[str, Any, str]] = (),
    columns: int = sys.maxsize,
) -> str:
    """Returns the flags of an algorithm, a task or a pair, with their defaults.

    Args:
      declarations: What there is.
      algo: The `--algo` name; None for the task alone.
      task: The `--task` name; None for the algorithm alone.
      launch: Name, default and help of the flags that belong to no setting.
      columns: The most characters of a line.
    """
    sections: list[tuple[str, Fields]] = []
    if algo is not None:
        algorithm = declarations.algorithm(algo)
        sections.append((f"{algorithm.title} ({algorithm.paper})", algorithm.fields))
    if task is not None:
        entry = declarations.task(task)
        sections.append((f"{entry.name} ({entry.summary})", entry.fields))
    sections.append(("every run", declarations.run))
    defaults = {n: f.default for _, fields in sections for n, f in fields.items()}
    if algo is not None and task is not None:
        defaults = resolve_pair(declarations, algo, task, {}, may_be_missing=True)
    elif algo is not None:
        every = algorithm.settings.get("*", {})
        defaults |= {name: every[name] for name in every if name in defaults}
    tables = [(title, _flag_rows(fields, defaults)) for title, fields in sections]
    launch_rows = [(f"--{name}={_shown(value)}", text) for name, value, text in launch]
    width = max(
        len(flag) for _, rows in (*tables, ("", launch_rows)) for flag, _ in rows
    )
    tables[-1] = (tables[-1][0], tables[-1][1] + launch_rows)
    blocks = [
        "\n".join([title, *(_wrapped(f"  {f:{width}}  ", t, columns) for f, t in rows)])
        for title, rows in tables
    ]
    note = ""
    if task is None:
        note = "\n\nA task may replace defaults: add --task=... to see them."
    elif algo is None:
        own = ", ".join(f"--{name}={value}" for name, value in entry.settings.items())
        note = f"\n\nDefaults that it gives to algorithms: {own or 'none'}."
    return "Flags and defaults\n\n" + "\n\n".join(blocks) + note


def _wrapped(flag: str, text: str, columns: int) -> str:
    """Returns a flag and its help, beside each other if a narrow text fits there."""
    is_beside = columns - len(flag) >= _NARROWEST
    indent = " " * (len(flag) if is_beside else 6)
    lines = textwrap.fill(
        text, columns, initial_indent=indent, subsequent_indent=indent
    )
    return flag + lines[len(flag) :] if is_beside else f"{flag.rstrip()}\n{lines}"


def _flag_rows(fields: Fields, defaults: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns flags with their defaults, and their help."""
    replaced = {
        field.replaces: name
        for name, field in fields.items()
        if field.replaces and defaults[name] not in (None, REQUIRED)
    }
    rows = []
    for name, field in fields.items():
        help_text = field.describe()
        if name in replaced:
            help_text += f"; not used, because --{replaced[name]} is set"
        rows.append((f"--{name}={_shown(field.format(defaults[name]))}", help_text))
    return rows


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None or value is REQUIRED or value == [] else str(value)


def markdown_tables(
    algorithms: Iterable[Algorithm],
    tasks: Iterable[Task],
    builders: Mapping[str, str],
) -> str:
    """Returns the tables of algorithms and tasks.

    Args:
      algorithms: The algorithms.
      tasks: The tasks and forms of own data.
      builders: The name of each algorithm's builder, by its `--algo` name.
    """
    lines = [
        "| `--algo` | algorithm | what it does | builder | source |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{a.name}` | {a.title} | {a.summary} | `{builders[a.name]}` | {a.paper} |"
        for a in algorithms
    ]
    lines += ["", "| `--task` | what it is | `--model` |", "|---|---|---|"]
    for task in tasks:
        models = task.fields["model"].choices
        lines.append(f"| `{task.name}` | {task.summary} | {', '.join(models)} |")
    return "\n".join(lines)
