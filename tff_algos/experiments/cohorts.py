"""Samples the clients of a round and prepares their batches.

Everything here is a function of the seed and the round, so a resumed run gets the same
clients and batches as an uninterrupted one.
"""

import collections
import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import TypeVar

import attrs
import numpy as np
import tensorflow as tf

from tasks.task import Task
from tff_algos import execution
from tff_algos.clients import client_memory
from tff_algos.clients.batching import BatchSpec, Examples, batch_examples, derive_seed
from tff_algos.clients.client_memory import ClientMemory
from tff_algos.experiments.errors import CohortSizeError
from tff_algos.experiments.malicious_clients import Attack
from tff_algos.experiments.stage import Stage

# A client's batches, or several datasets by name.
ClientData = tf.data.Dataset | Mapping[str, tf.data.Dataset]

_T = TypeVar("_T")


def check_cohort_size(client_ids: Sequence[str], size: int) -> None:
    """Raises `CohortSizeError` if there are fewer than `size` clients."""
    if size > len(client_ids):
        raise CohortSizeError(
            f"--clients_per_round={size} is more than the {len(client_ids)} clients "
            "that train."
        )


def sample_cohort(
    client_ids: Sequence[str], size: int, seed: int, round_num: int
) -> list[str]:
    """Samples `size` clients, uniformly and without replacement.

    Raises:
      CohortSizeError: If there are fewer than `size` clients.
    """
    check_cohort_size(client_ids, size)
    generator = np.random.default_rng(derive_seed(seed, "cohort", round_num))
    chosen = generator.choice(len(client_ids), size=size, replace=False)
    return [client_ids[index] for index in chosen]


def sample_poisson(
    client_ids: Sequence[str], size: int, seed: int, round_num: int
) -> list[str]:
    """Samples each client by itself, `size` clients on average.

    Raises:
      CohortSizeError: If there are fewer than `size` clients.
    """
    check_cohort_size(client_ids, size)
    generator = np.random.default_rng(derive_seed(seed, "cohort", round_num))
    order = generator.permutation(len(client_ids))
    taken = generator.random(len(client_ids)) * len(client_ids) < size
    return [client_ids[index] for index in order if taken[index]]


def _kept_with_task(compute: Callable[[Task], _T]) -> Callable[[Task], _T]:
    """Returns `compute` with a result for each task, kept no longer than the task."""
    results: weakref.WeakKeyDictionary[Task, _T] = weakref.WeakKeyDictionary()
    lock = threading.Lock()

    @functools.wraps(compute)
    def kept(task: Task) -> _T:
        with lock:
            if task not in results:
                results[task] = compute(task)
            return results[task]

    return kept


@_kept_with_task
def _pooled_examples(task: Task) -> Examples:
    # Filled client by client: np.concatenate would hold all examples twice.
    labels = task.train_labels or (
        lambda client_id: task.examples(client_id, "train")[1]
    )
    sizes = [len(labels(client_id)) for client_id in task.train_client_ids]
    x, y = task.examples(task.train_client_ids[0], "train")
    pooled = tuple(np.empty((sum(sizes), *a.shape[1:]), a.dtype) for a in (x, y))
    ends = np.cumsum(sizes)
    for client_id, size, end in zip(task.train_client_ids, sizes, ends, strict=True):
        for whole, own in zip(pooled, task.examples(client_id, "train"), strict=True):
            whole[end - size : end] = own
    return pooled


def pooled_examples(stage: Stage, task: Task) -> Examples:
    """Returns what a stage without cohorts trains on.

    Pooled examples of a task's clients stay in memory.
    """
    return stage.pooled_examples or _pooled_examples(task)


def pooled_batches(
    examples: Examples, spec: BatchSpec, seed: int, round_num: int
) -> tf.data.Dataset:
    """Returns a round's batches of pooled examples.

    Within a round, examples repeat only after all have appeared.
    """
    x, y = examples
    generator = np.random.default_rng(derive_seed(seed, "pooled", round_num))
    wanted = spec.num_processed(len(x))
    passes = -(-wanted // len(x))
    order = np.concatenate([generator.permutation(len(x)) for _ in range(passes)])
    chosen = order[:wanted]
    one_pass = attrs.evolve(spec.full_pass(), shuffle=False)
    return batch_examples((x[chosen], y[chosen]), one_pass, 0)


def cohort_ids(
    stage: Stage,
    task: Task,
    seed: int,
    round_num: int,
    attack: Attack | None = None,
    dropout: float = 0.0,
) -> list[str]:
    """Returns the ids of a round's clients; none if examples are pooled.

    Args:
      stage: Specifies the cohort size.
      task: The clients.
      seed: The run's seed.
      round_num: The round, counted over all stages.
      attack: An attack, whose malicious clients may replace others; or None.
      dropout: Probability with which each client drops out before it reports; a cohort
        may be empty.

    Raises:
      CohortSizeError: If the task has fewer training clients than the cohort.
    """
    if stage.clients_per_round is None:
        return []
    size = stage.clients_per_round
    sample = sample_poisson if stage.sampling == "poisson" else sample_cohort
    sampled = sample(task.train_client_ids, size, seed, round_num)
    cohort = sampled if attack is None else attack.cohort(sampled)
    generator = np.random.default_rng(derive_seed(seed, "dropout", round_num))
    stays = generator.random(len(cohort)) >= dropout
    return [client_id for client_id, here in zip(cohort, stays, strict=True) if here]


def cohort_datasets(
    stage: Stage,
    task: Task,
    seed: int,
    round_num: int,
    attack: Attack | None = None,
    dropout: float = 0.0,
) -> list[ClientData]:
    """Returns the data of every client that takes part in a round.

    The data do not include `memory`, which depends on earlier rounds.

    Args:
      stage: Specifies the cohort size and the batches.
      task: The clients.
      seed: The run's seed.
      round_num: The round, counted over all stages.
      attack: The attack of malicious clients, or None.
      dropout: As in `cohort_ids`.

    Raises:
      CohortSizeError: If the task has fewer training clients than the cohort.
    """
    if stage.clients_per_round is None:
        pooled = pooled_batches(
            pooled_examples(stage, task), stage.batches, seed, round_num
        )
        return [pooled if attack is None else attack.batches(None, pooled)]
    cohort = cohort_ids(stage, task, seed, round_num, attack, dropout)
    round_seed = derive_seed(seed, "round", round_num)
    examples = stage.train_examples or functools.partial(task.examples, split="train")
    # Others are made of this process's examples.
    are_tasks = stage.train_examples is None and attack is None
    fields = stage.client_data_fields

    def client_data(client_id: str) -> ClientData:
        own = functools.cache(lambda: examples(client_id))
        seed = derive_seed(round_seed, client_id)

        def batches(spec: BatchSpec) -> tf.data.Dataset:
            if are_tasks:
                return task.batches(client_id, "train", spec, seed)
            honest = batch_examples(own(), spec, seed)
            return honest if attack is None else attack.batches(client_id, honest)

        if not fields:
            return batches(stage.batches)
        data = {
            "examples": lambda: batches(stage.batches),
            "client_index": lambda: client_memory.index_dataset(
                positions(task)[client_id]
            ),
            "num_examples": lambda: execution.ElementDataset(
                np.int64(stage.count_examples(client_id, len(own()[0])))
            ),
            "full_pass": lambda: batches(stage.batches.full_pass()),
        }
        return collections.OrderedDict(
            (name, data[name]()) for name in fields if name in data
        )

    return [client_data(client_id) for client_id in cohort]


def with_memory(
    datasets: Sequence[ClientData], clients: Sequence[int], memory: ClientMemory
) -> list[ClientData]:
    """Returns a cohort's data with each client's row of the memory.

    Args:
      datasets: The result of `cohort_datasets`.
      clients: The indices of the cohort's clients, in the same order.
      memory: The rows of all clients.
    """
    return [
        collections.OrderedDict(data, memory=memory.dataset(client))
        for data, client in zip(datasets, clients, strict=True)
    ]


@_kept_with_task
def positions(task: Task) -> Mapping[str, int]:
    """Returns each training client's index among the training clients."""
    return {client_id: index for index, client_id in enumerate(task.train_client_ids)}


class CohortLoader:
    """Loads the next round's cohort while a round runs.

    One cohort is loaded ahead, so at most two cohorts are in memory.
    """

    def __init__(self, load: Callable[[int], list[ClientData]], last_round: int):
        """Initializes without loading.

        Args:
          load: Returns the datasets of a round; called in another thread.
          last_round: The last round to load.
        """
        self._load = load
        self._last_round = last_round
        self._thread = futures.ThreadPoolExecutor(1, "tff_algos-cohort")
        self._ahead: dict[int, futures.Future] = {}

    def datasets(self, round_num: int) -> list[ClientData]:
        """Returns the data of a round and starts loading the next round's.

        Raises:
          Exception: Any exception of `load`.
        """
        ahead = self._ahead.pop(round_num, None)
        datasets = self._load(round_num) if ahead is None else ahead.result()
        following = round_num + 1
        if following <= self._last_round:
            self._ahead = {following: self._thread.submit(self._load, following)}
        return datasets

    def close(self) -> None:
        """Drops the cohort that was loaded ahead."""
        self._thread.shutdown(wait=True, cancel_futures=True)
