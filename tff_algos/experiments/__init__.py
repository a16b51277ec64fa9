"""What a run is: recipes by name, the runner, evaluation, results and plots.

    from tff_algos import experiments

    result = experiments.run("gradma", "mnist", total_rounds=20, memory_decay=0.3)

The command line (`experiments.cli`) is one caller of it.
"""

from tff_algos.experiments.launch import run
from tff_algos.experiments.recipe import EVERY_TASK, Recipe
from tff_algos.experiments.run_spec import RunOptions, RunResult, RunSpec
from tff_algos.experiments.stage import Stage

__all__ = [
    "EVERY_TASK",
    "Recipe",
    "RunOptions",
    "RunResult",
    "RunSpec",
    "Stage",
    "run",
]
