"""Runs of two rounds on the tiny task, without evaluations."""

from typing import Any

from tests.testing import tiny_task
from tff_algos import experiments

_TASK = tiny_task.make()


def run(folder: Any, algo: str = "fedavg", **settings: Any) -> experiments.RunResult:
    """Returns the result of a run of five clients per round.

    Args:
      folder: Its results folder.
      algo: The algorithm.
      **settings: Further settings.
    """
    return experiments.run(
        algo,
        _TASK,
        output_dir=folder,
        total_rounds=2,
        clients_per_round=5,
        client_learning_rate=0.5,
        personalization_epochs=0,
        rounds_per_eval=0,
        **settings,
    )
