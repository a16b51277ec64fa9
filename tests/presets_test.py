"""Every preset is a run that the command line would take."""

import collections
import pathlib
import re

import pytest
from absl.testing import flagsaver

import tasks
from tff_algos.experiments import catalog, cli, launch
from tff_algos.experiments.stages import personalized_rounds

_PRESETS = sorted((pathlib.Path(__file__).parents[1] / "presets").glob("*.flags"))


_LETTERS = {
    "b": "client_batch_size",
    "e": "client_epochs_per_round",
    "k": "finetune_steps",
    "m": "clients_per_round",
}


def test_there_are_presets():
    counts = collections.Counter(path.stem.partition("_")[0] for path in _PRESETS)
    assert counts == {
        "adult": 15,
        "cifar10": 26,
        "emnist": 24,
        "femnist": 6,
        "mnist": 16,
        "shakespeare": 6,
    }


@pytest.mark.parametrize("preset", _PRESETS, ids=lambda path: path.stem)
def test_a_preset_sets_flags_that_its_algorithm_and_task_use(preset):
    cli.define_flags()
    with flagsaver.flagsaver():
        cli.FLAGS.unparse_flags()
        cli.FLAGS(["main.py", f"--flagfile={preset}"])
        recipe, entry = catalog.get(cli.FLAGS.algo), tasks.get(cli.FLAGS.task)
        chosen = cli.settings_of_flags(cli.declared())
        _, _, settings = launch.resolve(recipe, entry, chosen)
        assert cli.FLAGS.data == "tff"
    assert _rounds(settings) == _expected_rounds(preset.stem)
    # The name says what the flags say.
    words = set(preset.stem.split("_"))
    if recipe.name != "personalized_fedavg":
        assert recipe.name in preset.stem
    for letter, name in _LETTERS.items():
        if said := {word for word in words if re.fullmatch(rf"{letter}\d+", word)}:
            assert said == {f"{letter}{settings[name]}"}


def _expected_rounds(name):
    if name.startswith("cifar10_shards"):
        return 2000 if name.endswith("_b10") else 3000
    return 1500 if name.startswith("emnist_fair") else 500


def _rounds(settings):
    if "finetune_rounds" not in settings:
        return settings["total_rounds"]
    names = ("total_rounds", "pretrain_rounds", "finetune_rounds")
    return personalized_rounds(*(settings[name] for name in names))[0]
