"""Tests of the settings that algorithms have on tasks."""

import tasks
from tff_algos.experiments import catalog, pair_defaults
from tff_algos.experiments.recipe import EVERY_TASK

_SETTINGS = {
    name: settings
    for name, settings in vars(pair_defaults).items()
    if name.isupper() and not name.startswith("_") and not name.endswith("_PACE")
    if name != "EVERY_TASK"
}


def test_each_is_of_a_task_and_an_algorithm_that_has_it():
    for name, by_task in _SETTINGS.items():
        (recipe, *_) = [r for r in catalog.RECIPES if r.settings is by_task]
        assert set(by_task) <= {EVERY_TASK, *tasks.TASKS}, name
        for task_name, settings in by_task.items():
            of_task = recipe.task_defaults(task_name, ["model"])
            found = {**recipe.resolve(task_name, {}, {}), **of_task}
            assert {key: found[key] for key in settings} == dict(settings)


def test_servers_that_remember_every_client_have_models_that_fit():
    for settings in (pair_defaults.MIFA, pair_defaults.GRADMA, pair_defaults.GRADMA_W):
        assert settings["emnist"]["model"] == settings["mnist"]["model"] == "2nn"


def test_a_tasks_own_settings_win_over_those_of_all_tasks():
    uga = catalog.get("uga")
    assert uga.resolve("shakespeare", {}, {})["server_learning_rate"] == 2.0
    assert uga.resolve("mnist", {}, {})["server_learning_rate"] == 1.0
