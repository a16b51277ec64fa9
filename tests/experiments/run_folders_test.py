"""What a run's folder holds is told from its files alone."""

import pytest

from tests.testing.command_line import run_and_look_for_tensorflow
from tff_algos.experiments import run_folders
from tff_algos.experiments.errors import ModelFileError
from tff_algos.hyperparameters import HyperparameterError


def _with_files(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def test_rounds_are_those_of_whole_files(tmp_path):
    assert run_folders.checkpoint_rounds(tmp_path / "none") == []
    assert run_folders.model_rounds(tmp_path / "none") == {}
    _with_files(tmp_path, "checkpoints/round_10/a", "checkpoints/round_3_temp1/a")
    _with_files(tmp_path, "model/round_7.npz", "model/.round_8.npz.0123abcd")
    assert run_folders.checkpoint_rounds(tmp_path) == [10]
    assert run_folders.model_rounds(tmp_path) == {7: tmp_path / "model" / "round_7.npz"}


def test_weights_are_those_of_the_round_that_is_asked_for_or_the_latest(tmp_path):
    _with_files(tmp_path, "model/round_9.npz", "model/round_10.npz")
    of_10 = (tmp_path / "model" / "round_10.npz", 10)
    assert run_folders.find_weights(tmp_path) == of_10
    assert run_folders.find_weights(str(tmp_path), 9)[1] == 9
    _with_files(tmp_path, "model/weights.npz")
    assert run_folders.find_weights(tmp_path) == (
        tmp_path / "model" / "weights.npz",
        None,
    )
    assert run_folders.find_weights(tmp_path, 10) == of_10
    with pytest.raises(ModelFileError, match=r"after round 4; .* checkpoint: 9, 10\.$"):
        run_folders.find_weights(tmp_path, 4)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ModelFileError, match="holds no model: expected the folder of"):
        run_folders.find_weights(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(HyperparameterError, match=r"initial_model='.*it is a file, ex"):
        run_folders.check_initial_model(str(tmp_path / "file"), None)


def test_a_run_that_resumes_needs_no_initial_model(tmp_path):
    none, own = str(tmp_path / "none"), tmp_path / "own"
    run_folders.check_initial_model(None, None)
    with pytest.raises(HyperparameterError, match="there is no such folder"):
        run_folders.check_initial_model(none, own)
    _with_files(own, "checkpoints/round_1/a")
    run_folders.check_initial_model(none, own)


def test_a_mistyped_initial_model_is_told_without_tensorflow():
    finished, has_imported = run_and_look_for_tensorflow(
        "--algo=fedavg", "--task=mnist", "--initial_model=runs/none"
    )
    assert finished.status == 2
    assert finished.err == (
        "error: --initial_model='runs/none' is not valid: expected the results folder of "
        "a run of the same model; runs/none: there is no such folder.\n"
    )
    assert not has_imported
