"""Measures what clients and server of every algorithm send each other in a round.

    python benchmarks/communication.py
    python benchmarks/communication.py --algorithms=fedavg,scaffold --compression=topk:0.01

Prints megabytes per client and round, and how often that is the size of the model. Of an
algorithm in several stages, the rows are the stages.
"""

import os
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
# Read when TensorFlow is imported; silences its C++ logs.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tff_algos import compat  # noqa: F401  # isort: skip

import numpy as np
from absl import app, flags

from benchmarks.comparison import tables
from tff_algos import experiments
from tff_algos.experiments import catalog

_ALGORITHMS = flags.DEFINE_list("algorithms", [*catalog.ALGORITHMS], "Algorithms.")
_TASK = flags.DEFINE_string("on", "emnist", "The task, on generated data.")
_MODEL = flags.DEFINE_string("task_model", "2nn", "The task's model.")
_COMPRESSION = flags.DEFINE_string("compression", None, "As of main.py.")

_CLIENTS = 2
_SHORT = {
    "total_rounds": 2,
    "clients_per_round": _CLIENTS,
    "max_elements_per_client": 8,
    "client_epochs_per_round": 1,
    "updates_per_round": 2,
    "pretrain_rounds": 1,
    "finetune_rounds": 1,
}


def measure(algo: str, folder: str) -> list[list[str]]:
    """Returns the table's rows for one algorithm."""
    known = catalog.get(algo).hyperparameters()
    if _COMPRESSION.value is not None and "compression" not in known:
        return []
    settings = {name: value for name, value in _SHORT.items() if name in known}
    if _COMPRESSION.value is not None:
        settings["compression"] = _COMPRESSION.value
    result = experiments.run(
        algo,
        _TASK.value,
        data="generated",
        model=_MODEL.value,
        output_dir=f"{folder}/{algo}",
        rounds_per_eval=0,
        eval_clients=1,
        personalization_epochs=0,
        **settings,
    )
    size = sum(np.asarray(each).nbytes for each in result.weights.trainable)
    clients = _CLIENTS if "clients_per_round" in known else 1
    stages = dict.fromkeys(row["stage"] for row in result.rows)
    rows = []
    for stage in stages:
        own = [row for row in result.rows if row["stage"] == stage]
        sent = [
            # Pooled examples are not communicated with.
            statistics.fmean(row.get(name, 0) for row in own) / clients
            for name in ("bytes_down", "bytes_up")
        ]
        title = algo if len(stages) == 1 else f"{algo}, {stage}"
        cells = [f"{each / 1e6:.3f}" for each in sent]
        rows.append([title, *cells, *(f"{each / size:.2f}" for each in sent)])
    return rows


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}.")
    header = ["algorithm", "MB down", "MB up", "models down", "models up"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for algo in _ALGORITHMS.value:
            found = measure(algo, folder)
            for row in found or [[algo, "has no --compression"]]:
                print(*row, file=sys.stderr, flush=True)
            rows += found
    print(tables.format_table(header, rows))


if __name__ == "__main__":
    app.run(main)
