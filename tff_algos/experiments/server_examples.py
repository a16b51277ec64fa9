"""The server's own examples, drawn from the task's clients."""

from collections.abc import Sequence

import numpy as np

from tasks.task import Task
from tff_algos.clients.batching import Examples, derive_seed
from tff_algos.hyperparameters import HyperparameterError

# From a larger population, this many clients are used to represent all.
_MAX_CLIENTS = 200


def draw(task: Task, fraction: float, purpose: str, overlap: float = 1.0) -> Examples:
    """Draws training examples, uniformly and without replacement.

    The result is a function of the task's seed and the arguments. If there are more
    than 200 clients, the examples come from 200 of them, and their number is scaled to
    all.

    Args:
      task: The task whose clients the examples come from.
      fraction: Number of examples as a share of those of all training clients, in
        (0, 1].
      purpose: The purpose of the examples, which is the prefix of the hyperparameters
        `<purpose>_fraction` and `<purpose>_overlap`; different purposes draw different
        examples.
      overlap: Share of the examples that comes from training clients, in [0, 1]; the
        others come from clients that are evaluated but do not train.

    Raises:
      HyperparameterError: If there are no such other clients or too few examples.
    """
    rng = np.random.default_rng(derive_seed(task.seed, "server examples", purpose))
    training = set(task.train_client_ids)
    others = [c for c in task.eval_client_ids if c not in training]
    inside, scale = _pool(task, task.train_client_ids, rng)
    total = max(1, round(fraction * scale * len(inside[0])))
    num_outside = round((1 - overlap) * total)
    if total - num_outside > len(inside[0]):
        raise _too_many(purpose, fraction, len(inside[0]))
    chosen = [_choose(inside, total - num_outside, rng)]
    if num_outside:
        if not others:
            raise HyperparameterError(
                f"{purpose}_overlap",
                overlap,
                "1, since every client of the task that evaluates also trains",
            )
        outside, _ = _pool(task, others, rng)
        if num_outside > len(outside[0]):
            raise _too_many(purpose, fraction, len(outside[0]))
        chosen.append(_choose(outside, num_outside, rng))
    return tuple(np.concatenate(parts) for parts in zip(*chosen, strict=True))


def _pool(
    task: Task, client_ids: Sequence[str], rng: np.random.Generator
) -> tuple[Examples, float]:
    """Returns some clients' examples and the ratio of all clients to these."""
    count = min(len(client_ids), _MAX_CLIENTS)
    taken = sorted(rng.choice(len(client_ids), count, replace=False))
    parts = [task.examples(client_ids[index], "train") for index in taken]
    pooled = tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return pooled, len(client_ids) / count


def _choose(pool: Examples, count: int, rng: np.random.Generator) -> Examples:
    taken = rng.choice(len(pool[0]), count, replace=False)
    return tuple(array[taken] for array in pool)


def _too_many(purpose: str, fraction: float, available: int) -> HyperparameterError:
    return HyperparameterError(
        f"{purpose}_fraction",
        fraction,
        f"one that asks for {available} examples at most",
    )
