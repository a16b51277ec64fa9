"""Recipes: which settings an algorithm has, and which of them win."""

import numpy as np
import pytest
import tf_keras

import tasks
from tff_algos.clients.batching import batch_examples
from tff_algos.experiments import catalog
from tff_algos.experiments.recipe import has_statistics
from tff_algos.hyperparameters import HyperparameterError


def test_flags_beat_the_papers_setting_which_beats_the_tasks():
    centralized = catalog.get("centralized")
    task_settings = {"client_learning_rate": 0.5, "client_batch_size": 7, "unused": 1}
    settings = centralized.resolve("emnist", task_settings, {})
    assert settings["client_learning_rate"] == 0.001
    assert settings["client_batch_size"] == 7
    chosen = {"client_learning_rate": 0.2}
    settings = centralized.resolve("emnist", task_settings, chosen)
    assert settings["client_learning_rate"] == 0.2


def test_steps_replace_epochs():
    fedavg = catalog.get("fedavg")
    settings = fedavg.resolve("emnist", {}, {"client_steps_per_round": 4})
    batches = fedavg.batches(settings)
    assert (batches.num_steps, batches.num_epochs) == (4, None)
    both = {"client_steps_per_round": 4, "client_epochs_per_round": 2}
    with pytest.raises(HyperparameterError, match="with --client_epochs_per_round=2"):
        fedavg.resolve("emnist", {}, both)


def test_epochs_replace_a_papers_steps():
    gradma = catalog.get("gradma")
    paper = gradma.batches(gradma.resolve("mnist", {}, {}))
    assert (paper.num_steps, paper.num_epochs, paper.batch_size) == (5, None, 64)
    assert paper.step_batching == "per_pass"
    chosen = {"client_epochs_per_round": 2}
    own = gradma.batches(gradma.resolve("mnist", {}, chosen))
    assert (own.num_steps, own.num_epochs) == (None, 2)


@pytest.mark.parametrize("name", ["uga", "fedmeta_uga"])
def test_ugas_epochs_are_all_in_the_data_and_shuffled_anew(name):
    recipe = catalog.get(name)
    batches = recipe.batches(recipe.resolve("any", {}, {"client_epochs_per_round": 3}))
    assert batches.num_epochs == 3
    examples = (np.arange(4), np.arange(4))
    batched = batch_examples(examples, batches, seed=0)
    first, second, _ = np.concatenate([x for x, _ in batched]).reshape(3, 4)
    assert first.tolist() != second.tolist()


def test_a_builders_weighting_is_the_flags_default():
    weightings = {
        name: catalog.get(name).resolve("any", {}, {})["client_weighting"]
        for name in ("fedavg", "fedmgda", "fedavg_n")
    }
    assert weightings == {
        "fedavg": "num_examples",
        "fedmgda": "uniform",
        "fedavg_n": "uniform",
    }


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("mimelite", {"client_optimizer": "adam"}, "base_momentum=0.1.*adam has no"),
        ("fedavgm", {"server_optimizer": "adam"}, "server_momentum=0.9.*adam has no"),
        (
            "fedavg",
            {"client_optimizer": "adam", "client_momentum": 0.5},
            "client_momentum=0.5.*adam has no",
        ),
        (
            "maml",
            {"query": "held_out", "step_batching": "straddling"},
            "step_batching='straddling'.*per_pass for --query=held_out",
        ),
        (
            "fedshare",
            {"count_shared": False, "client_weighting": "uniform"},
            "count_shared=False.*True unless --client_weighting=num_examples",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(name, chosen, message):
    with pytest.raises(HyperparameterError, match=message):
        catalog.get(name).resolve("emnist", {}, chosen)


def test_frozen_weights_are_no_statistics_to_which_privacy_adds_no_noise():
    """Batch normalization's moving statistics are, and are refused with `dp`."""
    frozen = tf_keras.layers.Dense(3, trainable=False, input_shape=[2])
    model = tf_keras.Sequential([frozen, tf_keras.layers.Dense(2)])
    task = tasks.from_arrays(
        np.ones([16, 2]), np.arange(16) % 2, np.arange(16) % 2, model=model
    )
    assert len(task.model.initial_weights[1]) == 2
    assert not has_statistics(task.model)
    assert has_statistics(
        tasks.load_task("mnist", data="generated", model="tiny_nn").model
    )
