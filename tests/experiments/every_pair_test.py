"""Every algorithm runs on every task."""

import json

import pytest

import tasks
from tests.testing.command_line import SMALL, run_apart, run_here
from tff_algos.experiments import catalog
from tff_algos.experiments.metrics_log import read_rows

FASTEST_MODEL = {
    "emnist": ("--only_digits", "--model=2nn"),
    "shakespeare": (),
    "mnist": ("--model=2nn",),
    "fashion_mnist": (),
    "cifar10": (),
    "adult": (),
    "cifar100": (),
    "tiny_imagenet": (),
    "stackoverflow": ("--vocab_size=500",),
}
# One of each family's algorithms on one task, and every task but the largest images'
# with one algorithm; all others take many minutes.
FAST_TASK, FAST_ALGO = "emnist", "fedavg"
# Where the clients' part is all of the model: Adult's is a single block.
NOTHING_SHARED = {
    *(("local", task) for task in tasks.TASKS),
    *((algo, "adult") for algo in ("fedper", "fedrep", "lg_fedavg")),
}
RELATIVES = {
    "fedavgm",
    "fedproxm",
    "fedmeta_uga",
    "reptile",
    "fomaml",
    "fedmgda",
    "mgda_prox",
    "fedavg_n",
    "gradma_w",
    "gradma_s",
    "moonm",
    "fedmlbm",
    "mifam",
}


def _is_fast(algo, task):
    if task == "tiny_imagenet":
        return False
    return algo == FAST_ALGO or (task == FAST_TASK and algo not in RELATIVES)


PAIRS = [
    pytest.param(
        algo,
        task,
        marks=() if _is_fast(algo, task) else pytest.mark.slow,
        id=f"{algo}-{task}",
    )
    for algo in catalog.ALGORITHMS
    for task in tasks.TASKS
]


def _short_rounds(recipe):
    """Flags that make a round of any algorithm short."""
    short = {
        "client_epochs_per_round": 1,
        "client_steps_per_round": 2,
        "finetune_steps": 2,
        "clients_per_round": 2,
        "max_elements_per_client": 8,
        "updates_per_round": 3,
    }
    fields = recipe.hyperparameters()
    steps = fields.get("client_steps_per_round")
    if steps is not None and steps.replaces in fields:
        del short["client_steps_per_round"]
    return [f"--{name}={value}" for name, value in short.items() if name in fields]


@pytest.mark.parametrize(("algo", "task"), PAIRS)
def test_every_algorithm_runs_on_every_task(algo, task, tmp_path, capfd):
    arguments = [
        f"--algo={algo}",
        f"--task={task}",
        f"--output_dir={tmp_path}",
        *SMALL,
        *FASTEST_MODEL[task],
        *_short_rounds(catalog.get(algo)),
    ]
    few = _is_fast(algo, task)
    finished = run_here(capfd, *arguments) if few else run_apart(tmp_path, *arguments)
    assert finished.status == 0, finished.err
    title = catalog.get(algo).title
    assert f"{title} on {task}_generated" in finished.out
    assert "personalized accuracy, mean (std) over clients" in finished.out
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["rounds"] == 2
    assert summary["dataset"] == f"{task}_generated"
    rows = read_rows(tmp_path / "metrics.csv")
    assert all(row["train/num_examples"] > 0 for row in rows)
    shares = (algo, task) not in NOTHING_SHARED
    assert all((row["update_norm"] > 0) == shares for row in rows)
    assert "eval/accuracy" in rows[-1]
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["hyperparameters"]["algo"] == algo
    assert config["data_source"] == "generated"
    assert config["versions"]["tensorflow-federated"] == "0.87.0"
