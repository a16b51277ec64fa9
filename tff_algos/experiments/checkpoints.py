"""Checkpoints of a run: the process's state after a round, and what it was.

On TFF's `FileProgramStateManager`, which writes a version beside the others and
then renames it, so that a kill leaves whole versions only.
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

from tff_algos.experiments import files
from tff_algos.experiments.errors import ResumeError

CONFIG_FILE = "config.json"
_PREFIX = "round_"


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_coroutine(coroutine: Coroutine) -> Any:
    """Runs a coroutine to its end, inside a running event loop too (Colab)."""
    if not _loop_is_running():
        return asyncio.run(coroutine)
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(asyncio.run, coroutine).result()


class Checkpoints:
    """The checkpoints in a folder, by the number of rounds done."""

    def __init__(self, directory: str | os.PathLike[str], keep: int = 2) -> None:
        self._directory = pathlib.Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        for leftover in self._directory.glob(f"{_PREFIX}*_temp*"):
            files.remove(leftover)
        self._manager = tff.program.FileProgramStateManager(
            self._directory, prefix=_PREFIX, keep_total=keep, keep_first=False
        )

    def rounds(self) -> list[int]:
        """Returns after how many rounds there are checkpoints, ascending."""
        return run_coroutine(self._manager.get_versions()) or []

    def save(self, round_num: int, state: Any, memory: Any = None) -> None:
        """Saves the state after `round_num` rounds, unless that is there already.

        Args:
          round_num: The version.
          state: The process's state.
          memory: What `ClientMemory.save` returned, if clients remember anything.
        """
        if round_num in self.rounds():
            return
        flat = tf.nest.flatten((state, memory or ()))
        run_coroutine(self._manager.save(flat, version=round_num))

    def load(
        self, round_num: int, like: Any, memory_like: Any = None
    ) -> tuple[Any, Any]:
        """Returns the state after `round_num` rounds, and that of the clients' memory.

        Args:
          round_num: The version.
          like: A state to structure it as.
          memory_like: What `ClientMemory.save` returns, of any size; None where clients
            remember nothing.

        Raises:
          ResumeError: If the checkpoint cannot be read or is of another model.
        """
        template = tf.nest.flatten((like, memory_like or ()))
        path = self._directory / f"{_PREFIX}{round_num}"
        try:
            flat = run_coroutine(self._manager.load(round_num, template))
        except Exception as error:  # the reader raises whatever its parsers do
            raise ResumeError(
                f"checkpoint {path} cannot be read ({type(error).__name__}): delete "
                "it to go on from the checkpoint before it."
            ) from error
        state_size = len(tf.nest.flatten(like))
        found = [np.asarray(value) for value in flat]
        wanted = [np.asarray(value) for value in template]
        if any(a.dtype != b.dtype for a, b in zip(found, wanted, strict=True)) or any(
            a.shape != b.shape
            for a, b in zip(found[:state_size], wanted[:state_size], strict=True)
        ):
            raise ResumeError(f"checkpoint {path} is of another model or algorithm.")
        state = tf.nest.pack_sequence_as(like, flat[:state_size])
        if memory_like is None:
            return state, None
        return state, tf.nest.pack_sequence_as(memory_like, found[state_size:])


def check_config(
    directory: str | os.PathLike[str],
    hyperparameters: Mapping[str, Any],
    may_grow: str | None = None,
) -> bool:
    """Tells whether the folder holds a run, and refuses it if it is another one.

    Args:
      directory: The output folder.
      hyperparameters: All that decides the run's numbers, by flag name.
      may_grow: A hyperparameter that may be larger than it was.

    Returns:
      Whether there is a run to resume.

    Raises:
      ResumeError: If the run in the folder had other hyperparameters, each of
        which is named with both values, or its configuration is missing or
        cannot be read.
    """
    path = pathlib.Path(directory) / CONFIG_FILE
    if not path.exists():
        # Whose rows and weights they are is unknown, and a run would overwrite them.
        for name in ("metrics.csv", "checkpoints"):
            if (path.parent / name).exists():
                raise ResumeError(
                    f"{directory} holds {name} but no {CONFIG_FILE}: put that file "
                    "back, or choose another --output_dir."
                )
        return False
    try:
        saved = dict(json.loads(path.read_text())["hyperparameters"])
    except (ValueError, KeyError, TypeError) as error:
        raise ResumeError(
            f"{path} is not the configuration of a run: choose another --output_dir."
        ) from error
    now = json.loads(files.to_json(hyperparameters))
    changed = [
        f"--{name}: was {saved.get(name)!r}, now {now.get(name)!r}"
        for name in sorted(saved.keys() | now.keys())
        if saved.get(name) != now.get(name)
        and not (name == may_grow and _has_grown(saved.get(name), now.get(name)))
    ]
    if changed:
        raise ResumeError(
            f"{directory} holds a run with other hyperparameters "
            f"({'; '.join(changed)}): choose another --output_dir."
        )
    return True


def _has_grown(before: Any, now: Any) -> bool:
    return isinstance(before, int) and isinstance(now, int) and now > before


def write_config(directory: str | os.PathLike[str], config: Mapping[str, Any]) -> None:
    """Writes the run's configuration."""
    files.write_json(pathlib.Path(directory) / CONFIG_FILE, config)
