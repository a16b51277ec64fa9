"""Runs main.py over a grid of flags and seeds, and prints one table.

    python benchmarks/sweep.py --grid=client_epochs_per_round=2,5,10 --seeds=3 \
        --output_dir=runs/sweep -- --algo=personalized_fedavg --task=emnist

What stands after `--` goes to every run. A run that is done is not run again, one
that was stopped goes on.
"""

import itertools
import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
from absl import app, flags

_GRID = flags.DEFINE_multi_string(
    "grid", [], "A flag of main.py and its values: name=value,value. Repeatable."
)
_SEEDS = flags.DEFINE_integer("seeds", 3, "Seeds 0, 1, ... of every grid point.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", "runs/sweep", "Folder of the runs.")
_COLUMNS = flags.DEFINE_list(
    "columns",
    ["initial_accuracy", "personalized_accuracy"],
    "Columns of the table: keys of summary.json's `personalization`.",
)
_MAIN = pathlib.Path(__file__).parent.parent / "main.py"


def _points(grid: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns every combination of the grid's values, as flags of main.py."""
    axes = []
    for axis in grid:
        name, _, values = axis.partition("=")
        if not values:
            raise app.UsageError(f"--grid={axis}: expected name=value,value.")
        axes.append([f"--{name}={value}" for value in values.split(",")])
    return list(itertools.product(*axes))


def _run(arguments: Sequence[str], output_dir: pathlib.Path) -> dict:
    """Runs main.py, unless it was run, and returns its summary."""
    summary = output_dir / "summary.json"
    if not summary.exists():
        output_dir.mkdir(parents=True, exist_ok=True)
        with open(output_dir / "log.txt", "a") as log:
            subprocess.run(
                [sys.executable, _MAIN, *arguments, f"--output_dir={output_dir}"],
                stdout=log,
                stderr=subprocess.STDOUT,
                check=True,
            )
    return json.loads(summary.read_text())


def main(argv: list[str]) -> None:
    """Runs every point of the grid with every seed, then prints the table."""
    common = argv[1:]
    points = _points(_GRID.value)
    print(f"| {' | '.join(['flags', *_COLUMNS.value])} |")
    print(f"|{'---|' * (1 + len(_COLUMNS.value))}")
    for point in points:
        label = " ".join(flag.lstrip("-") for flag in point) or "defaults"
        values = []
        for seed in range(_SEEDS.value):
            folder = f"{label.replace(' ', '+')}+seed={seed}"
            path = pathlib.Path(_OUTPUT_DIR.value) / folder
            summary = _run([*common, *point, f"--seed={seed}"], path)
            values.append([summary["personalization"][c] for c in _COLUMNS.value])
        means, spreads = np.mean(values, axis=0), np.std(values, axis=0)
        cells = [f"{m:.4f} ({s:.4f})" for m, s in zip(means, spreads, strict=True)]
        print(f"| {' | '.join([label, *cells])} |", flush=True)


if __name__ == "__main__":
    app.run(main)
