"""Every preset is a run that the command line would take."""

import collections
import pathlib
import re

import pytest
from absl.testing import flagsaver

import main
import tasks
from tff_algos import registry

_PRESETS = sorted((pathlib.Path(main.__file__).parent / "presets").glob("*.flags"))


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
    with flagsaver.flagsaver():
        main.FLAGS.unparse_flags()
        main.FLAGS(["main.py", f"--flagfile={preset}"])
        algorithm, entry = registry.get(main.FLAGS.algo), tasks.get(main.FLAGS.task)
        users = ("run", f"--algo={algorithm.name}", f"--task={entry.name}")
        chosen = main._chosen(users)
        hparams = algorithm.resolve(entry.name, entry.settings, chosen[users[1]])
        entry.options(**chosen[users[2]])
        assert main.FLAGS.data == "tff"
    assert _rounds(hparams) == _expected_rounds(preset.stem)
    # The name says what the flags say.
    words = set(preset.stem.split("_"))
    if algorithm.name != "personalized_fedavg":
        assert algorithm.name in preset.stem
    for letter, name in _LETTERS.items():
        if said := {word for word in words if re.fullmatch(rf"{letter}\d+", word)}:
            assert said == {f"{letter}{getattr(hparams, name)}"}


def _expected_rounds(name):
    if name.startswith("cifar10_shards"):
        return 2000 if name.endswith("_b10") else 3000
    return 1500 if name.startswith("emnist_fair") else 500


def _rounds(hparams):
    stages = getattr(hparams, "stage_rounds", None)
    return stages()[0] if stages else hparams.total_rounds
