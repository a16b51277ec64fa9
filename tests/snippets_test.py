"""The Python in README and docs runs as it stands, given what its page takes for granted."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# A Ray cluster takes many seconds to start; tests/execution/distributed has such calls.
_NOT_RUN = "ray.md"
# What must come before TensorFlow runs, in a process of its own.
_FIRST = "intra_op_threads"

# A model of three layers, clients, and runs that take seconds.
_GIVEN = """
import tff_algos
import numpy as np
import pandas as pd
import tensorflow as tf
import tensorflow_federated as tff
from tasks.models import classifier
from tff_algos import experiments

def model_fn():
    layers = [tf.keras.layers.Dense(4) for _ in range(2)] + [tf.keras.layers.Dense(10)]
    return tff.learning.models.from_keras_model(
        tf.keras.Sequential([tf.keras.layers.InputLayer((784,)), *layers]),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=(tf.TensorSpec([None, 784]), tf.TensorSpec([None], tf.int32)),
    )

def dataset(k):
    random = np.random.default_rng(k)
    x = random.normal(size=[5, 784]).astype(np.float32)
    y = random.integers(10, size=5).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(5)

model = model_fn
clients = [dataset(k) for k in range(3)]
cohorts = [[0, 7], [7, 2]]
sgd = tff.learning.optimizers.build_sgdm(0.1)
process = tff.learning.algorithms.build_weighted_fed_avg(model_fn, sgd)
state = process.initialize()
frame = pd.DataFrame(
    {
        "age": np.arange(60.0),
        "hospital": ["a", "b", "c"] * 20,
        "income": ["low", "high"] * 30,
    }
)
images = np.zeros([1, 28, 28, 1], np.float32)

few = {"data": "generated", "max_elements_per_client": 20, "eval_clients": 2}
few |= {"clients_per_round": 2, "personalization_epochs": 1}
run, compare = experiments.run, experiments.compare

def few_for(task):
    return few if isinstance(task, str) else {**few, "data": "auto"}

def run_few(algo, task, **settings):
    return run(algo, task, **{**settings, **few_for(task), "total_rounds": 2})

def compare_few(*rows, task, **settings):
    few = few_for(task)
    return compare(*rows, task=task, **{**settings, **few, "total_rounds": 1, "seeds": 1})

experiments.run, experiments.compare = run_few, compare_few
"""

_ALSO_GIVEN = {
    "data.md": """
random = np.random.default_rng(0)
features, labels = random.normal(size=[60, 5]).astype(np.float32), [0, 1, 2] * 20
client_ids, num_classes = ["a", "b", "c"] * 20, 3
""",
    "fedavg.md": """
folder = "runs/figure_1"
run("fedavg", "mnist", model="2nn", output_dir=f"{folder}/start", total_rounds=0, **few)
for k in (1, 2):
    of_start = {"initial_model": f"{folder}/start", "seed": k, "total_rounds": 1}
    run("fedavg", "mnist", model="2nn", output_dir=f"{folder}/shared_{k}", **of_start, **few)
""",
    "runs.md": """
folder = "runs/fedavg-emnist-20261124-101500"
run("fedavg", "emnist", output_dir=folder, total_rounds=20, **few)
""",
}
# By page: what holds in the end.
_CLAIMS = {
    "README.md": "isinstance(state, tff.learning.templates.LearningAlgorithmState)",
    "aggregation.md": "meter.total.bytes_up > 0",
    "components.md": "isinstance(process, tff.learning.templates.LearningProcess)",
    "comparing.md": "comparison.num_failed == 0",
    "data.md": "result.keras_model()(features).shape == (60, 3)",
    "fedavg.md": "len(losses) == 29 and min(losses) < losses[-1]",
    "own_models.md": "len(own.trainable) == len(weights.trainable)",
    "privacy.md": "abs(rounds.epsilon(num_rounds=100, delta=1e-5) - 8.0) < 0.1",
    "runs.md": "len(result.metrics['eval/accuracy']) == 2",
    "stateful_clients.md": "any(np.any(part) for k in range(n) for part in memory.row(k))",
    "runtime.md": "metrics['client_work']['train']['num_examples'] == 15",
}


def _blocks(page):
    return _BLOCK.findall(page.read_text())


_PAGES = [
    page
    for page in (_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md")))
    if _blocks(page) and page.name != _NOT_RUN
]


def _run(code, folder):
    path = folder / "snippet.py"
    path.write_text(code)
    return subprocess.run(
        [sys.executable, str(path)],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=300,
    )


def test_pages_are_found():
    names = {page.name for page in _PAGES}
    assert set(_CLAIMS) | set(_ALSO_GIVEN) <= names and len(names) > 8


@pytest.mark.slow
@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_the_snippets_of_a_page_run_one_after_the_other(page, tmp_path):
    blocks = [block for block in _blocks(page) if _FIRST not in block]
    claim = _CLAIMS.get(page.name, "True")
    parts = [_GIVEN, _ALSO_GIVEN.get(page.name, ""), *blocks, f"assert {claim}"]
    done = _run("\n".join(parts), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_number_of_threads_within_an_op_is_set_first(tmp_path):
    blocks = [block for page in _PAGES for block in _blocks(page) if _FIRST in block]
    assert blocks
    for block in blocks:
        done = _run(f"import tff_algos\n{block}", tmp_path)
        assert done.returncode == 0, done.stderr
