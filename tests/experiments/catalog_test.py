"""Every algorithm of the catalog has valid defaults and describes its settings."""

import inspect

import pytest

import tff_algos
from tff_algos.experiments import catalog


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
