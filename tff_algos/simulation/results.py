"""What a finished run leaves: its summary and its clients' results."""

import csv
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tff_algos.simulation import files
from tff_algos.simulation.evaluation import ClientResult, personalization_summary
from tff_algos.simulation.metrics import ROUND, SECONDS, rounds_to_target
from tff_algos.simulation.task import Task

TARGET_ACCURACIES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)
_COUNTS = (
    "num_non_finite_clients",
    "num_empty_clients",
    "num_rejected_rounds",
    "aggregator/num_zero_updates",
    "aggregator/qp_fallbacks",
)


def write_clients(path: pathlib.Path, results: Sequence[ClientResult]) -> None:
    """Writes one row per evaluated client, atomically."""
    num_epochs = len(results[0].accuracy) if results else 0
    curves = [
        f"{name}_after_{epoch}_epochs"
        for name in ("accuracy", "loss")
        for epoch in range(num_epochs)
    ]
    with files.replacing(path) as file:
        writer = csv.writer(file)
        writer.writerow(
            ["client_id", "num_train_examples", "num_test_examples", *curves]
        )
        for result in results:
            sizes = (result.num_train_examples, result.num_test_examples)
            writer.writerow([result.client_id, *sizes, *result.accuracy, *result.loss])


def summarize(
    task: Task,
    rows: Sequence[Mapping[str, Any]],
    results: Sequence[ClientResult],
    *,
    rounds: int,
    wall_seconds: float,
    peak_memory: Mapping[str, int],
) -> dict[str, Any]:
    """Returns what `summary.json` holds.

    Args:
      task: The task.
      rows: The rows of `metrics.csv`.
      results: The evaluated clients' results.
      rounds: Rounds done; more than there are rows if `metrics.csv` was deleted.
      wall_seconds: How long this program ran; less than the run if it was resumed.
      peak_memory: Bytes, by what held them.
    """
    train_seconds = sum(row[SECONDS] for row in rows)
    last = {k: v for row in rows for k, v in row.items() if k not in (ROUND, SECONDS)}
    return {
        "dataset": task.dataset_name,
        "rounds": rounds,
        "final_metrics": last,
        "personalization": personalization_summary(results),
        "evaluation_clients": len(task.eval_client_ids),
        "rounds_to_eval_accuracy": rounds_to_target(
            rows, "eval/accuracy", TARGET_ACCURACIES
        ),
        "excluded": {
            name.rpartition("/")[2]: sum(row.get(name, 0) for row in rows)
            for name in _COUNTS
        },
        "improved_clients": _mean(rows, "improved_clients"),
        "wall_seconds": round(wall_seconds, 2),
        "train_seconds": round(train_seconds, 2),
        "rounds_per_second": _per_second(rows),
        "peak_memory_mb": {
            name: round(held / 2**20) for name, held in peak_memory.items()
        },
    }


def _per_second(rows: Sequence[Mapping[str, Any]]) -> float | None:
    # Very short rounds are 0.0 seconds each.
    seconds = sum(row[SECONDS] for row in rows)
    return round(len(rows) / seconds, 4) if seconds else None


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Returns the mean over the rounds that have it; None if there is none."""
    values = [row[name] for row in rows if name in row]
    return sum(values) / len(values) if values else None
