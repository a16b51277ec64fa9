"""Printed output: the table of a finished run, and lists of algorithms and tasks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tasks.task import TaskEntry
from tff_algos.experiments.help_texts import described
from tff_algos.experiments.recipe import Recipe
from tff_algos.hyperparameters import declared


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _metric(name: str, value: float | None) -> str:
    if value is None:
        return "none"
    return _percent(value) if name.endswith("accuracy") else f"{value:.4f}"


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
    people = summary["personalization"]
    if people["num_clients"]:
        clients = f"{people['num_clients']} of {summary['evaluation_clients']}"
        rows.append(("clients evaluated", clients))
        kinds = ["initial"]
        if len(people["accuracy_by_epoch"]) > 1:
            kinds.append("personalized")
        for kind in kinds:
            mean, std = people[f"{kind}_accuracy"], people[f"{kind}_accuracy_std"]
            rows.append(
                (
                    f"{kind} accuracy, mean (std) over clients",
                    f"{_percent(mean)} ({_percent(std)})",
                )
            )
            worst, best = (
                _percent(people[f"{kind}_accuracy_{end}_decile"])
                for end in ("worst", "best")
            )
            rows.append(("  worst and best tenth of clients", f"{worst}, {best}"))
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
    memory = summary["peak_memory_mb"]
    rows.append(
        (
            "peak memory",
            f"{memory['python']} MB, runtime {memory['runtime_processes']} MB",
        )
    )
    return f"\n{title}\n{text_table(rows)}"


def catalog(algorithms: Iterable[Recipe], tasks: Iterable[TaskEntry]) -> str:
    """Returns the lists of algorithms and tasks."""
    algorithm_rows = [(a.name, a.summary) for a in algorithms]
    task_rows = [(t.name, t.summary) for t in tasks]
    return (
        f"Algorithms (--algo)\n{text_table(algorithm_rows)}\n\n"
        f"Tasks (--task)\n{text_table(task_rows)}\n\n"
        "--list --algo=... --task=... shows a pair's flags and defaults; --helpshort "
        "all flags\nand, in brackets, which of these use them."
    )


def settings(recipe: Recipe, task: TaskEntry, options: type) -> str:
    """Returns the flags of an algorithm and a task, with the pair's defaults.

    Args:
      recipe: The algorithm.
      task: The task.
      options: The record of the options common to all runs.
    """
    resolved = recipe.resolve(task.name, task.settings, {})
    rows = [
        (f"--{name}={_shown(field.format(resolved[name]))}", field.describe())
        for name, field in recipe.hyperparameters().items()
    ]
    rows += [
        (f"--{name}={_shown(field.default)}", field.describe())
        for each in (task.options, options)
        for name, field in described(each).items()
    ]
    return (
        f"{recipe.title} ({recipe.paper}) on {task.name}: flags and defaults\n"
        f"{text_table(rows)}"
    )


def _shown(value: Any) -> str:
    return "" if value is None else str(value)


def markdown_tables(algorithms: Iterable[Recipe], tasks: Iterable[TaskEntry]) -> str:
    """Returns the README's tables of algorithms and tasks."""
    lines = ["| `--algo` | algorithm | what it does | source |", "|---|---|---|---|"]
    lines += [
        f"| `{a.name}` | {a.title} | {a.summary} | {a.paper} |" for a in algorithms
    ]
    lines += ["", "| `--task` | what it is | `--model` |", "|---|---|---|"]
    for task in tasks:
        models = declared(task.options)["model"].choices
        lines.append(f"| `{task.name}` | {task.summary} | {', '.join(models)} |")
    return "\n".join(lines)
