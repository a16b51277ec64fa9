"""Measures the cost of clients' rows: time and memory per round by population.

    python benchmarks/client_memory_cost.py
    python benchmarks/client_memory_cost.py --populations=1000,100000 --row_weights=10000

Every round reads and writes the rows of a random cohort, as a run does between two
rounds of training; nothing is trained. Rows are in a file in a temporary folder.
Memory is the increase of the process's memory over the rounds; the file's size is its
allocated disk space.
"""

import os
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
# Read when TensorFlow is imported; silences its C++ logs.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tff_algos import compat  # noqa: F401  # isort: skip

import numpy as np
import psutil
import tensorflow_federated as tff
from absl import app, flags

import tff_algos
from benchmarks.comparison import machine, tables

_ROUNDS_PER_CHECKPOINT = 10

_POPULATIONS = flags.DEFINE_list(
    "populations", ["1000", "10000", "100000"], "Numbers of clients."
)
_WEIGHTS = flags.DEFINE_integer(
    "row_weights", 10_000, "Numbers per row.", lower_bound=1
)
_COHORT = flags.DEFINE_integer("cohort", 100, "Clients per round.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer(
    "memory_rounds", 200, "Rounds.", lower_bound=_ROUNDS_PER_CHECKPOINT
)

_MEGABYTE = 2**20


def measure(population: int) -> list[str]:
    """Returns the table's row for one population size."""
    rng = np.random.default_rng(0)
    process = psutil.Process()
    row_type = tff.TensorType(np.float32, [_WEIGHTS.value])
    with tempfile.TemporaryDirectory() as folder:
        memory = tff_algos.ClientMemory(row_type, population, folder)
        held, seconds, saves = 0, [], []
        for number in range(_ROUNDS.value):
            cohort = rng.choice(population, _COHORT.value, replace=False)
            rows = rng.random((len(cohort), _WEIGHTS.value), dtype=np.float32)
            start = time.perf_counter()
            datasets = [memory.dataset(client) for client in cohort]
            memory.update(
                {
                    "client_index": cohort,
                    "accepted": np.ones(len(cohort), bool),
                    "row": rows,
                }
            )
            seconds.append(time.perf_counter() - start)
            del datasets
            if (number + 1) % _ROUNDS_PER_CHECKPOINT == 0:
                start = time.perf_counter()
                memory.save()
                saves.append(time.perf_counter() - start)
            if number == 0:
                held = process.memory_info().rss
        more = process.memory_info().rss - held
        size = sum(
            file.stat().st_blocks * 512 for file in pathlib.Path(folder).iterdir()
        )
    return [
        f"{population:,}",
        tables.format_number(1e3 * statistics.median(seconds)),
        tables.format_number(1e3 * statistics.median(saves)),
        tables.format_number(more / _MEGABYTE),
        tables.format_number(size / _MEGABYTE),
        tables.format_number(population * memory.row_bytes / _MEGABYTE),
    ]


def main(argv: list[str]) -> None:
    """Prints the table."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    for number in _POPULATIONS.value:
        if not number.isdecimal() or int(number) < _COHORT.value:
            raise app.UsageError(
                f"--populations={number}: expected whole numbers >= --cohort="
                f"{_COHORT.value}."
            )
    header = [
        "clients",
        "ms per round",
        "ms per checkpoint",
        "MB more",
        "MB of file",
        "MB of all rows",
    ]
    rows = [measure(int(population)) for population in _POPULATIONS.value]
    print(
        f"{_COHORT.value} clients per round, {_WEIGHTS.value} float32 each, "
        f"{_ROUNDS.value} rounds; {machine.processor_line(machine.describe())}\n"
    )
    print(tables.format_table(header, rows))


if __name__ == "__main__":
    app.run(main)
