"""The public symbols of `tff_algos.experiments`."""

from tff_algos.experiments.comparison.compare import Comparison, compare
from tff_algos.experiments.launch import run
from tff_algos.experiments.model_files import TrainedModel, load_model
from tff_algos.experiments.recipe import EVERY_TASK, Recipe
from tff_algos.experiments.run_spec import RunOptions, RunResult, RunSpec
from tff_algos.experiments.stage import Stage

__all__ = [
    "EVERY_TASK",
    "Comparison",
    "Recipe",
    "RunOptions",
    "RunResult",
    "RunSpec",
    "Stage",
    "TrainedModel",
    "compare",
    "load_model",
    "run",
]
