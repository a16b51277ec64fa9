"""Results of a finished run: its summary and its clients' results."""

import csv
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Self

import attrs

from tasks.task import Task
from tff_algos.experiments import files
from tff_algos.experiments.evaluation import (
    ClientResult,
    evaluated_and_seen,
    personalization_summary,
)
from tff_algos.experiments.malicious_clients import Attack
from tff_algos.experiments.metric_names import (
    BYTES_DOWN,
    BYTES_UP,
    ROUND,
    SECONDS,
    WORKERS_DOWN,
    WORKERS_UP,
)
from tff_algos.experiments.metrics_log import rounds_to_target
from tff_algos.experiments.private_aggregators import Guarantee

TARGET_ACCURACIES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)
_NON_FINITE, _REJECTED = "num_non_finite_clients", "num_rejected_rounds"
_COUNTS = (
    _NON_FINITE,
    "num_empty_clients",
    _REJECTED,
    "num_zero_updates",
    "qp_fallbacks",
    "client_qp_fallbacks",
)


def _count(row: Mapping[str, Any], name: str) -> int:
    """Returns a round's count, summed over all parts of the process that report it."""
    return sum(v for key, v in row.items() if key.rpartition("/")[2] == name)


def _rounds(count: int) -> str:
    return f"{count} round" if count == 1 else f"{count} rounds"


@attrs.frozen(kw_only=True)
class Rejections:
    """The rejected rounds and excluded updates of a run.

    Attributes:
      num_rounds: Rounds of the run.
      num_participations: The total number of clients over all rounds.
      num_rejected: Rounds that left the model unchanged.
      num_non_finite: Client updates excluded because they were not finite.
      num_silent: Rejected rounds in which no client reported an update.
      num_weightless: Rejected rounds in which all that reported had weight zero.
      num_overflowed: Rejected rounds in which all reported updates were finite, and some
        had a weight.
    """

    num_rounds: int
    num_participations: int
    num_rejected: int
    num_non_finite: int
    num_silent: int
    num_weightless: int
    num_overflowed: int

    @classmethod
    def of_rows(
        cls, rows: Sequence[Mapping[str, Any]], num_rounds: int, num_participations: int
    ) -> Self:
        """Counts the rows of `metrics.csv`."""
        rejected = [row for row in rows if _count(row, _REJECTED)]
        finite = [row for row in rejected if not _count(row, _NON_FINITE)]
        silent = [row for row in finite if row.get("train/num_examples") == 0]
        heard = [row for row in finite if row.get("train/num_examples") != 0]
        weightless = [row for row in heard if row.get("total_weight") == 0]
        return cls(
            num_rounds=num_rounds,
            num_participations=num_participations,
            num_rejected=len(rejected),
            num_non_finite=sum(_count(row, _NON_FINITE) for row in rows),
            num_silent=len(silent),
            num_weightless=len(weightless),
            num_overflowed=len(heard) - len(weightless),
        )

    @property
    def all_rounds(self) -> bool:
        """Whether there were rounds and all of them were rejected."""
        return 0 < self.num_rounds == self.num_rejected

    def describe(self, client_dropout: float, *, attacked: bool) -> str | None:
        """Returns one line about rejections and exclusions with possible reasons.

        Args:
          client_dropout: The probability that a client drops out of a round.
          attacked: Whether there are malicious clients.

        Returns:
          The line; None if nothing was rejected or excluded.
        """
        counts, reasons = [], []
        if self.num_rejected:
            counts.append(f"{self.num_rejected} of {self.num_rounds} rounds rejected")
        if self.num_non_finite:
            shown = f"{self.num_non_finite} of {self.num_participations}"
            counts.append(f"{shown} client updates excluded")
            also = ", or --attack makes them so" if attacked else ""
            reasons.append(
                "client updates were not finite (the client learning rate may be too "
                f"high{also})"
            )
        if self.num_silent:
            reason = "they may have no training examples"
            if client_dropout:
                reason = f"--client_dropout={client_dropout:g} may be too high"
            silent = _rounds(self.num_silent)
            reasons.append(f"no client reported in {silent} ({reason})")
        if self.num_weightless:
            reasons.append(
                f"all that reported weighed zero in {_rounds(self.num_weightless)} "
                "(--clients_per_round may be low)"
            )
        if self.num_overflowed:
            reasons.append(
                f"the aggregated update overflowed in {_rounds(self.num_overflowed)} (a "
                "learning rate may be too high)"
            )
        if not counts:
            return None
        line = f"{' and '.join(counts)}: {'; '.join(reasons)}."
        if self.all_rounds:
            line += " Every round was rejected: the model is the initial one."
        return line


def write_clients(path: pathlib.Path, results: Sequence[ClientResult]) -> None:
    """Writes a row for each evaluated client and personalization epoch, atomically.

    If clients keep models, each row has the accuracy and loss of the client's own too.
    Of a client without test examples they are NaN.
    """
    keep_models = any(result.own_accuracy is not None for result in results)
    with files.replacing(path) as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                "client_id",
                "seen",
                "num_train_examples",
                "num_test_examples",
                "epoch",
                "accuracy",
                "loss",
                *(["own_accuracy", "own_loss"] if keep_models else []),
            ]
        )
        for result in results:
            who = (
                result.client_id,
                str(result.seen).lower(),
                result.num_train_examples,
                result.num_test_examples,
            )
            curves = zip(result.accuracy, result.loss, strict=True)
            for epoch, (accuracy, loss) in enumerate(curves):
                own = (result.own_accuracy, result.own_loss) if keep_models else ()
                found = (accuracy, loss, *own)
                tested = result.num_test_examples > 0
                writer.writerow(
                    [*who, epoch, *(found if tested else [math.nan] * len(found))]
                )


def summarize(
    task: Task,
    rows: Sequence[Mapping[str, Any]],
    results: Sequence[ClientResult],
    rejections: Rejections,
    *,
    wall_seconds: float,
    peak_memory: Mapping[str, int],
    attack: Attack | None = None,
    guarantee: Guarantee | None = None,
) -> dict[str, Any]:
    """Returns the content of `summary.json`.

    Args:
      task: The task.
      rows: The rows of `metrics.csv`.
      results: The evaluated clients' results.
      rejections: The rejections of the same rows.
      wall_seconds: The duration of this program; less than the run's if it was resumed.
      peak_memory: Bytes, by owner.
      attack: What malicious clients did, or None.
      guarantee: What the rounds say about a client, or None.
    """
    evaluated, seen = evaluated_and_seen(task, results)
    train_seconds = sum(row[SECONDS] for row in rows)
    last = {k: v for row in rows for k, v in row.items() if k not in (ROUND, SECONDS)}
    return {
        "dataset": task.dataset_name,
        "attack": _describe(attack),
        "privacy": _describe_privacy(guarantee, rejections.num_rounds),
        "rounds": rejections.num_rounds,
        "final_metrics": last,
        "personalization": personalization_summary(evaluated),
        **({"personalization_seen": personalization_summary(seen)} if seen else {}),
        "evaluation_clients": len(task.eval_client_ids),
        "rounds_to_eval_accuracy": rounds_to_target(
            rows, "eval/accuracy", TARGET_ACCURACIES
        ),
        "participations": rejections.num_participations,
        "excluded": {name: sum(_count(row, name) for row in rows) for name in _COUNTS},
        "improved_clients": _mean(rows, "improved_clients"),
        "wall_seconds": round(wall_seconds, 2),
        "train_seconds": round(train_seconds, 2),
        "rounds_per_second": (
            # The measured time of very short rounds is 0.0 seconds.
            round(len(rows) / train_seconds, 4) if train_seconds else None
        ),
        "peak_memory_mb": {
            name: round(held / 1e6) for name, held in peak_memory.items()
        },
        **{
            f"{name}_per_round": _mean(rows, name)
            for name in (BYTES_DOWN, BYTES_UP, WORKERS_DOWN, WORKERS_UP)
            if name in last
        },
    }


def _describe_privacy(
    guarantee: Guarantee | None, num_rounds: int
) -> dict[str, Any] | None:
    return guarantee and {
        "epsilon": guarantee.epsilon(num_rounds),
        "delta": guarantee.delta,
        **attrs.asdict(guarantee.rounds),
    }


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Returns a metric's mean over the rounds that have it; None if none has."""
    values = [row[name] for row in rows if name in row]
    return sum(values) / len(values) if values else None


def _describe(attack: Attack | None) -> dict[str, Any] | None:
    return attack and {
        "kind": attack.kind,
        "value": attack.value,
        "clients": sorted(attack.client_ids),
        "every_round": attack.every_round,
    }
