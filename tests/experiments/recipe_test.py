"""Recipes: which settings an algorithm has, and which of them win."""

import inspect

import pytest

import tff_algos
from tff_algos.experiments import catalogue
from tff_algos.experiments.stages import personalized_rounds
from tff_algos.hyperparameters import HyperparameterError


@pytest.mark.parametrize("recipe", catalogue.RECIPES, ids=lambda recipe: recipe.name)
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


def test_flags_beat_the_papers_setting_which_beats_the_tasks():
    centralized = catalogue.get("centralized")
    task_settings = {"client_learning_rate": 0.5, "client_batch_size": 7, "unused": 1}
    settings = centralized.resolve("emnist", task_settings, {})
    assert settings["client_learning_rate"] == 0.001
    assert settings["client_batch_size"] == 7
    chosen = {"client_learning_rate": 0.2}
    settings = centralized.resolve("emnist", task_settings, chosen)
    assert settings["client_learning_rate"] == 0.2


def test_steps_replace_epochs():
    fedavg = catalogue.get("fedavg")
    settings = fedavg.resolve("emnist", {}, {"client_steps_per_round": 4})
    batches = fedavg.batches(settings)
    assert (batches.num_steps, batches.num_epochs) == (4, None)
    both = {"client_steps_per_round": 4, "client_epochs_per_round": 2}
    with pytest.raises(HyperparameterError, match="without client_epochs_per_round"):
        fedavg.resolve("emnist", {}, both)


def test_a_builders_weighting_is_the_flags_default():
    weightings = {
        name: catalogue.get(name).resolve("any", {}, {})["client_weighting"]
        for name in ("fedavg", "fedmgda", "fedavg_n")
    }
    assert weightings == {
        "fedavg": "num_examples",
        "fedmgda": "uniform",
        "fedavg_n": "uniform",
    }


def test_an_algorithm_with_momentum_is_its_base_with_another_default():
    base, variant = catalogue.get("moon"), catalogue.get("moonm")
    assert base.build is variant.build
    chosen = {"server_momentum": 0.9}
    assert base.resolve("t", {}, chosen) == variant.resolve("t", {}, {})


@pytest.mark.parametrize(
    ("given_rounds", "expected"),
    [
        ((None, None, None), (20, 8)),
        ((700, None, None), (500, 200)),
        ((40, None, None), (29, 11)),
        ((10, None, 0), (10, 0)),
        ((10, 4, None), (4, 6)),
        ((None, 3, 5), (3, 5)),
        ((None, None, 3), (25, 3)),
    ],
)
def test_rounds_of_personalized_fedavg(given_rounds, expected):
    assert personalized_rounds(*given_rounds) == expected


@pytest.mark.parametrize("given_rounds", [(10, None, 11), (10, 3, 3)])
def test_rounds_of_personalized_fedavg_must_add_up(given_rounds):
    with pytest.raises(HyperparameterError, match="total_rounds=10 is not valid"):
        personalized_rounds(*given_rounds)
    names = ("total_rounds", "pretrain_rounds", "finetune_rounds")
    chosen = dict(zip(names, given_rounds, strict=True))
    with pytest.raises(HyperparameterError, match="total_rounds=10 is not valid"):
        catalogue.get("personalized_fedavg").resolve("emnist", {}, chosen)


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("mimelite", {"client_optimizer": "adam"}, "base_momentum=0.9.*adam has no"),
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
        catalogue.get(name).resolve("emnist", {}, chosen)
