"""Algorithms and tasks of other packages: found, or refused with their module's name."""

import sys
import types

import attrs
import pytest

import tasks
from tff_algos.experiments import catalogue, plugins

RECIPE = attrs.evolve(catalogue.get("fedavg"), name="own_fedavg")
ENTRY = attrs.evolve(tasks.get("mnist"), name="own_mnist")


@pytest.fixture
def module(monkeypatch):
    """Makes a module of a name that can be imported."""

    def make(name, **attributes):
        made = types.ModuleType(name)
        vars(made).update(attributes)
        monkeypatch.setitem(sys.modules, name, made)
        return name

    return make


def test_a_named_module_adds_its_recipes_and_tasks(module):
    name = module("own_module", RECIPES=[RECIPE], TASKS=[ENTRY])
    found = plugins.load([name, name])
    assert found.algorithms["own_fedavg"] is RECIPE
    assert found.tasks["own_mnist"] is ENTRY
    assert found.algorithms.keys() - catalogue.ALGORITHMS.keys() == {"own_fedavg"}
    assert found.tasks.keys() - tasks.TASKS.keys() == {"own_mnist"}


def test_without_modules_there_is_what_this_package_has():
    found = plugins.load()
    assert found.algorithms == catalogue.ALGORITHMS
    assert found.tasks == tasks.TASKS


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "--module=own has neither RECIPES nor TASKS"),
        ({"RECIPES": ["fedavg"]}, "--module=own offers 'fedavg', expected a Recipe"),
        ({"TASKS": [RECIPE]}, "--module=own offers .*, expected a TaskEntry"),
        (
            {"RECIPES": [catalogue.get("fedavg")]},
            "--module=own offers fedavg, which is taken",
        ),
        ({"TASKS": [ENTRY, ENTRY]}, "--module=own offers own_mnist, which is taken"),
    ],
)
def test_a_module_that_offers_something_else_is_named(attributes, message, module):
    with pytest.raises(plugins.ModuleError, match=message):
        plugins.load([module("own", **attributes)])


def test_a_module_that_cannot_be_imported_is_named_with_the_reason():
    message = "--module=no_such cannot be imported: ModuleNotFoundError: No module"
    with pytest.raises(plugins.ModuleError, match=message):
        plugins.load(["no_such"])
