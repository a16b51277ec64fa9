"""Every algorithm of the catalog has valid defaults and describes its settings."""

import inspect
import json

import numpy as np
import pytest

import tasks
import tff_algos
from tasks.task import DataOptions
from tests.testing.command_line import run_program
from tff_algos.experiments import catalog

# A sample of pairs. Not Stack Overflow and Tiny ImageNet: 30 rounds of their defaults do not
# beat the majority by the margin, which a line before the first round says.
_SAMPLE = (
    ("fedprox", "shakespeare"),
    ("mimelite", "emnist"),
    ("reptile", "emnist"),
    ("reptile", "shakespeare"),
    ("fedmgda", "shakespeare"),
    ("pfedme", "shakespeare"),
    ("uga", "fashion_mnist"),
    ("uga", "adult"),
    ("afl", "adult"),
    ("fedmgda", "adult"),
    ("fedsgd", "adult"),
    ("qfedavg", "adult"),
    ("reptile", "adult"),
    ("fedsgd", "mnist"),
    ("fedsgd", "emnist"),
    ("mifa", "emnist"),
    ("gradma", "mnist"),
    ("mifam", "mnist"),
    ("moon", "cifar10"),
    ("fedavg", "cifar100"),
    ("maml", "emnist"),
)
_MARGIN = 0.1


@pytest.mark.parametrize("recipe", catalog.RECIPES, ids=lambda recipe: recipe.name)
def test_every_algorithm_has_valid_defaults_and_describes_its_hyperparameters(recipe):
    recipe.resolve("any task", {}, {})
    for field in recipe.hyperparameters().values():
        assert field.help and "\n" not in field.help, field.name
        assert not field.help.startswith("As in"), field.name


@pytest.mark.parametrize(
    "name", [name for name in tff_algos.__all__ if name.startswith("build_")]
)
def test_every_argument_of_a_public_builder_is_spelled_out(name):
    parameters = inspect.signature(getattr(tff_algos, name)).parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    variadic = {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    assert not kinds & variadic


def test_an_algorithm_with_momentum_is_its_base_with_another_default():
    base, variant = catalog.get("moon"), catalog.get("moonm")
    assert base.build is variant.build
    chosen = {"server_momentum": 0.9}
    assert base.resolve("t", {}, chosen) == variant.resolve("t", {}, {})


def _share_of_majority(task_name):
    """Returns the share of the most frequent label in the stand-in's test examples."""
    task = tasks.load_task(task_name, None, DataOptions(data="generated"))
    labels = [task.examples(client, "test")[1] for client in task.eval_client_ids]
    flat = np.concatenate([np.ravel(each) for each in labels])
    if labels[0].ndim > 1:
        flat = flat[flat > 0]  # Without padding.
    return np.bincount(flat).max() / len(flat)


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "task_name"), _SAMPLE)
def test_a_pair_learns_visibly_with_no_other_flag(algo, task_name, tmp_path):
    run = tmp_path / "run"
    # A program of its own, since memory that earlier runs took would count.
    done = run_program(
        f"--algo={algo}",
        f"--task={task_name}",
        "--data=generated",
        f"--output_dir={run}",
        timeout=1800,
    )
    assert done.status == 0, done.err
    summary = json.loads((run / "summary.json").read_text())
    accuracy = summary["final_metrics"]["eval/accuracy"]
    assert accuracy > _share_of_majority(task_name) + _MARGIN
    assert summary["peak_memory_mb"]["python"] < 3 * 1024
