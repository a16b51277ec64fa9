"""What the folder of a run holds: checkpoints and models; told without TensorFlow."""

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator

from tff_algos import paths
from tff_algos.experiments.errors import ModelFileError
from tff_algos.hyperparameters import HyperparameterError

CHECKPOINTS, MODEL = "checkpoints", "model"
CHECKPOINT_PREFIX = "round_"
WEIGHTS = "weights.npz"
ROUND = re.compile(r"round_(\d+)\.npz")


def checkpoint_rounds(run_dir: str | os.PathLike[str]) -> list[int]:
    """Returns the rounds with a checkpoint; none if there is no such folder."""
    found = (pathlib.Path(run_dir) / CHECKPOINTS).glob(f"{CHECKPOINT_PREFIX}*")
    numbers = (path.name.removeprefix(CHECKPOINT_PREFIX) for path in found)
    return [int(number) for number in numbers if number.isdigit()]


def model_rounds(run_dir: str | os.PathLike[str]) -> dict[int, pathlib.Path]:
    """Returns the files of models by round, without that of the last round."""
    found = (pathlib.Path(run_dir) / MODEL).glob("*.npz")
    matches = ((ROUND.fullmatch(path.name), path) for path in sorted(found))
    return {int(match[1]): path for match, path in matches if match}


def find_weights(
    run_dir: str | os.PathLike[str], round_num: int | None = None
) -> tuple[pathlib.Path, int | None]:
    """Returns the file of a model's weights, and after which round if not the last.

    Args:
      run_dir: The folder of a run.
      round_num: After which round; one that has a checkpoint. By default after the last
        round, or after the last checkpoint of a run that was stopped.

    Raises:
      ModelFileError: If the folder has no such model.
    """
    folder = pathlib.Path(os.path.expanduser(run_dir))
    fault = paths.fault(folder, is_folder=True)
    if fault is not None:
        raise ModelFileError(f"{folder}: {fault}.")
    rounds = model_rounds(folder)
    final = folder / MODEL / WEIGHTS
    if not rounds and not final.exists():
        raise ModelFileError(f"{folder} holds no model: expected the folder of a run.")
    if round_num is None and not final.exists():
        round_num = max(rounds)
    path = final if round_num is None else rounds.get(round_num)
    if path is None or not path.exists():
        there = ", ".join(map(str, sorted(rounds))) or "none"
        raise ModelFileError(
            f"{folder} holds no model after round {round_num!r}; rounds with a "
            f"checkpoint: {there}."
        )
    return path, round_num


def starts_anew(output_dir: str | os.PathLike[str] | None) -> bool:
    """Returns whether a run has no checkpoint to resume from, so needs a first model."""
    return output_dir is None or not checkpoint_rounds(os.path.expanduser(output_dir))


@contextlib.contextmanager
def naming_initial_model(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Makes errors of the model that a run is to start from name the flag.

    Raises:
      HyperparameterError: In place of a `ModelFileError`.
    """
    try:
        yield
    except ModelFileError as error:
        raise HyperparameterError(
            "initial_model",
            str(folder),
            f"the results folder of a run of the same model; {str(error).rstrip('.')}",
        ) from error


def check_initial_model(
    folder: str | None, output_dir: str | os.PathLike[str] | None
) -> None:
    """Checks that there is the model that a run is to start from.

    Args:
      folder: The value of `--initial_model`.
      output_dir: The run's own folder.

    Raises:
      HyperparameterError: If there is none, and the run would not resume.
    """
    if folder is not None and starts_anew(output_dir):
        with naming_initial_model(folder):
            find_weights(folder)
