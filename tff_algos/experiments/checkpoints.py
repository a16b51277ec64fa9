"""Checkpoints of a run, the process's state after a round, and its configuration.

Checkpoints use TFF's `FileProgramStateManager`, which writes a version to a temporary
path and renames it, so a killed run leaves only complete versions.
"""

import asyncio
import concurrent.futures
import json
import os
import pathlib
from collections.abc import Coroutine, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.experiments import files, run_folders
from tff_algos.experiments.errors import ResumeError


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_coroutine(coroutine: Coroutine) -> Any:
    """Runs a coroutine to completion, even inside a running event loop (Colab)."""
    if not _loop_is_running():
        return asyncio.run(coroutine)
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(asyncio.run, coroutine).result()


class Checkpoints:
    """The checkpoints in a folder, by the number of completed rounds."""

    def __init__(self, directory: str | os.PathLike[str], keep: int = 2) -> None:
        self._directory = pathlib.Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        for leftover in self._directory.glob(f"{run_folders.CHECKPOINT_PREFIX}*_temp*"):
            files.remove(leftover)
        self._manager = tff.program.FileProgramStateManager(
            self._directory,
            prefix=run_folders.CHECKPOINT_PREFIX,
            keep_total=keep,
            keep_first=False,
        )

    def rounds(self) -> list[int]:
        """Returns the versions of the checkpoints, ascending."""
        return run_coroutine(self._manager.get_versions()) or []

    def save(self, round_num: int, state: Any, memory: Any = None) -> None:
        """Saves the state after `round_num` rounds, unless it is already saved.

        Args:
          round_num: The version.
          state: The process's state.
          memory: The result of `ClientMemory.save`, if clients have memory.
        """
        if round_num in self.rounds():
            return
        flat = tf.nest.flatten((state, memory or ()))
        with files.without_log():
            run_coroutine(self._manager.save(flat, version=round_num))

    def load(
        self, round_num: int, like: Any, memory_like: Any = None
    ) -> tuple[Any, Any]:
        """Returns the states of the process and of the clients' memory.

        Args:
          round_num: The version.
          like: A state with the same structure.
          memory_like: A result of `ClientMemory.save`, of any size; None if clients
            have no memory.

        Raises:
          ResumeError: If the checkpoint cannot be read or belongs to another model.
        """
        template = tf.nest.flatten((like, memory_like or ()))
        path = self._directory / f"{run_folders.CHECKPOINT_PREFIX}{round_num}"
        try:
            flat = run_coroutine(self._manager.load(round_num, template))
        except Exception as error:  # The reader's parsers may raise any exception.
            raise ResumeError(
                f"checkpoint {path} cannot be read ({type(error).__name__}): delete "
                "it to resume from the previous checkpoint."
            ) from error
        state_size = len(tf.nest.flatten(like))
        found = [np.asarray(value) for value in flat]
        wanted = [np.asarray(value) for value in template]
        if any(a.dtype != b.dtype for a, b in zip(found, wanted, strict=True)) or any(
            a.shape != b.shape
            for a, b in zip(found[:state_size], wanted[:state_size], strict=True)
        ):
            raise ResumeError(
                f"checkpoint {path} belongs to another model or algorithm."
            )
        state = tf.nest.pack_sequence_as(like, flat[:state_size])
        if memory_like is None:
            return state, None
        return state, tf.nest.pack_sequence_as(memory_like, found[state_size:])


def check_config(
    directory: str | os.PathLike[str],
    hyperparameters: Mapping[str, Any],
    total_rounds: str | None = None,
    rounds_done: int = 0,
    fingerprint: str = "",
) -> Mapping[str, Any] | None:
    """Returns the configuration of the run to resume; fails if it is a different one.

    Args:
      directory: The output folder.
      hyperparameters: All settings that affect the run's results, by flag name.
      total_rounds: A hyperparameter that may differ from the existing run's, as long as
        it is not less than `rounds_done`.
      rounds_done: Rounds that the existing run has done.
      fingerprint: That of the task's data.

    Returns:
      The configuration; None if the folder holds no run.

    Raises:
      ResumeError: If the run in the folder has other hyperparameters, which the
        message lists with both values, or other data, or its configuration is missing
        or cannot be read.
    """
    path = pathlib.Path(directory) / files.CONFIG_FILE
    if not path.exists():
        # A new run would overwrite these results of an unknown run.
        for name in ("metrics.csv", run_folders.CHECKPOINTS):
            if (path.parent / name).exists():
                raise ResumeError(
                    f"{directory} holds {name} but no {files.CONFIG_FILE}: put that file "
                    "back, or choose another --output_dir."
                )
        return None
    try:
        config = json.loads(path.read_text("utf-8"))
        saved = dict(config["hyperparameters"])
    except (ValueError, KeyError, TypeError) as error:
        raise ResumeError(
            f"{path} is not the configuration of a run: choose another --output_dir."
        ) from error
    now = json.loads(files.to_json(hyperparameters))
    changed = [
        f"--{name}: was {saved.get(name)!r}, now {now.get(name)!r}"
        for name in sorted(saved.keys() | now.keys())
        if saved.get(name) != now.get(name)
        and not (
            name == total_rounds
            and isinstance(saved.get(name), int)
            and isinstance(now.get(name), int)
            and now[name] >= rounds_done
        )
    ]
    if changed:
        raise ResumeError(
            f"{directory} holds a run with other hyperparameters "
            f"({'; '.join(changed)}): choose another --output_dir."
        )
    if config.get(files.FINGERPRINT, "") != fingerprint:
        raise ResumeError(
            f"{directory} holds a run on other data: the examples, their partition or "
            "scaling, the task's other options or the layers of its model have changed "
            "since, or an earlier version wrote it; choose another --output_dir."
        )
    return config


def write_config(directory: str | os.PathLike[str], config: Mapping[str, Any]) -> None:
    """Writes the run's configuration."""
    files.write_json(pathlib.Path(directory) / files.CONFIG_FILE, config)
