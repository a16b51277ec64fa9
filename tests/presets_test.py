"""Every preset is a run that the command line would take."""

import pathlib

import pytest
from absl.testing import flagsaver

import main
import tasks
from tff_algos import registry

_PRESETS = sorted((pathlib.Path(main.__file__).parent / "presets").glob("*.flags"))


def test_there_are_presets():
    assert len(_PRESETS) == 17


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
    assert hparams.stage_rounds()[0] == 500
    # The name says what the flags say.
    words = preset.stem.split("_")
    if "fedavg" in words:
        assert f"m{hparams.clients_per_round}" in words
        assert f"e{hparams.client_epochs_per_round}" in words
    else:
        assert f"k{hparams.finetune_steps}" in words
