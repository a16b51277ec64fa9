"""How another process reads the clients of a task from its own files.

An origin is small, so a client's batches can be sent as (origin, client id, split,
batches, seed) in the place of its examples.
"""

import hashlib
import os
import socket
import threading
import zlib
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import execution
from tff_algos.clients.batching import BatchSpec, batch_examples

# A `tasks.task.Task` and its `DataOptions`; that module imports this one.
_Task = Any
_DataOptions = Any

# The latest task. Only one thread loads it; others wait and use it.
_tasks: dict["Origin", _Task] = {}
_lock = threading.Lock()


class OtherDataError(ValueError):
    """This process has other data than the one that asks; the message is one line."""


@attrs.frozen
class Origin:
    """Where a task comes from; can be pickled.

    Attributes:
      load: The function of its `TaskEntry`.
      options: The task's options.
      data_options: The source of its data, without a download.
      identity: A digest of its clients and of some clients' examples.
    """

    load: Callable[[Any, _DataOptions], _Task]
    options: Any
    data_options: _DataOptions
    identity: str


def of(
    task: _Task,
    load: Callable[[Any, _DataOptions], _Task],
    options: Any,
    data_options: _DataOptions,
) -> Origin | None:
    """Returns the origin of a task that was just loaded.

    Args:
      task: The task.
      load: The function that loaded it.
      options: The options that it was loaded with.
      data_options: The source of data that it was loaded with.

    Returns:
      The origin; None for a user's own data, which are sent.
    """
    if task.data_source == "own":
        return None
    folder = data_options.cache_dir
    data_options = attrs.evolve(
        data_options,
        # "auto" reads real data but never downloads them.
        data="generated" if task.data_source == "generated" else "auto",
        cache_dir=folder and os.path.abspath(os.path.expanduser(folder)),
    )
    origin = Origin(load, options, data_options, identity(task))
    with _lock:
        _keep(origin, task)
    return origin


def batches(
    origin: Origin, client_id: str, split: str, spec: BatchSpec, seed: int
) -> execution.ArrayDataset:
    """Returns a client's batches, read from this process's files.

    Args:
      origin: The task, loaded once per process.
      client_id: The client.
      split: "train" or "test".
      spec: As in `batch_examples`.
      seed: As in `batch_examples`.

    Raises:
      OtherDataError: If this process has other data.
      TaskError: If the data cannot be read.
    """
    with _lock:
        if origin not in _tasks:
            _keep(origin, _load(origin))
        task = _tasks[origin]
    return batch_examples(task.examples(client_id, split), spec, seed)


def fingerprint(task: _Task) -> str:
    """Returns a task's fingerprint, which also tells models of other sizes apart.

    Of a task without one, it is a digest of what the task holds.
    """
    made_of, dash, by_seed = (task.fingerprint or identity(task)).rpartition("-")
    if not dash:
        made_of, by_seed = by_seed, ""
    sizes = f":{zlib.crc32(_sizes(task.model)):08x}"
    # Appended only once: a task that was run may be run again.
    return f"{made_of.removesuffix(sizes)}{sizes}-{by_seed}"


def _sizes(model: tff.learning.models.FunctionalModel) -> bytes:
    # A model of another kind is refused later, with what was expected.
    weights = getattr(model, "initial_weights", ())
    return repr(tf.nest.map_structure(np.shape, weights)).encode()


def _keep(origin: Origin, task: _Task) -> None:
    _tasks.clear()
    _tasks[origin] = task


def _load(origin: Origin) -> _Task:
    task = origin.load(origin.options, origin.data_options)
    found = identity(task)
    if found != origin.identity:
        folder = origin.data_options.cache_dir or "~/.tff"
        raise OtherDataError(
            f"{socket.gethostname()} has {found} in {folder}, the run uses "
            f"{origin.identity}: copy the run's data there, or give --cache_dir a folder "
            "that all machines share."
        )
    return task


def identity(task: _Task) -> str:
    """Returns the name of a task's dataset and a digest of clients and some examples."""
    digest = hashlib.sha256()
    for client_id in (*task.train_client_ids, *task.eval_client_ids):
        digest.update(f"{client_id}\0".encode())
    # Not of all clients: text and images would have to be decoded.
    some = (*task.train_client_ids[:1], *task.train_client_ids[-1:])
    for client_id in dict.fromkeys((*some, *task.eval_client_ids[:1])):
        for split in ("train", "test"):
            for part in tf.nest.flatten(task.examples(client_id, split)):
                array = np.asarray(part)
                digest.update(f"{array.dtype}{array.shape}".encode())
                digest.update(array.tobytes())
    return f"{task.dataset_name}:{digest.hexdigest()[:12]}"
