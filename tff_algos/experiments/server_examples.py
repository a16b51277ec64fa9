"""The server's own examples, drawn from the task's clients."""

import math
from collections.abc import Sequence

import attrs
import numpy as np

from tasks.task import Task
from tff_algos.clients.batching import Examples, derive_seed
from tff_algos.hyperparameters import HyperparameterError

# From a larger population, this many clients represent all, unless they have too few
# examples: about so many times those that are drawn.
_MAX_CLIENTS, _SPARE = 200, 2.0


def draw(task: Task, fraction: float, purpose: str, overlap: float = 1.0) -> Examples:
    """Draws training examples, uniformly and without replacement.

    The result is a function of the task's seed and the arguments. If there are more
    than 200 clients, the examples come from 200 of them, or from twice the share of
    clients that is asked for if that is more, and their number is scaled to all.

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
    inside = _Pool.of(task, task.train_client_ids, fraction * overlap, rng)
    total = max(1, round(fraction * inside.scale * inside.size))
    num_outside = round((1 - overlap) * total)
    if total - num_outside > inside.size:
        raise _too_many(purpose, fraction, inside.size)
    chosen = [inside.choose(task, total - num_outside, rng)]
    if num_outside:
        if not others:
            raise HyperparameterError(
                f"{purpose}_overlap",
                overlap,
                "1, since every client of the task that evaluates also trains",
            )
        share = fraction * (1 - overlap) * len(training) / len(others)
        outside = _Pool.of(task, others, share, rng)
        if num_outside > outside.size:
            raise _too_many(purpose, fraction, outside.size)
        chosen.append(outside.choose(task, num_outside, rng))
    return tuple(np.concatenate(parts) for parts in zip(*chosen, strict=True))


@attrs.frozen
class _Pool:
    """Some clients' training examples; read client by client, since all may be large.

    Attributes:
      client_ids: The clients.
      ends: Where each client's examples end if all are in one array.
      scale: The ratio of all clients to these.
    """

    client_ids: Sequence[str]
    ends: np.ndarray
    scale: float

    @classmethod
    def of(
        cls,
        task: Task,
        client_ids: Sequence[str],
        share: float,
        rng: np.random.Generator,
    ) -> "_Pool":
        """Returns the pool of some of these clients, of whose examples a share is drawn."""
        enough = max(_MAX_CLIENTS, math.ceil(_SPARE * share * len(client_ids)))
        count = min(len(client_ids), enough)
        taken = sorted(rng.choice(len(client_ids), count, replace=False))
        chosen = [client_ids[index] for index in taken]
        sizes = [len(task.examples(each, "train")[0]) for each in chosen]
        return cls(chosen, np.cumsum(sizes), len(client_ids) / count)

    @property
    def size(self) -> int:
        """The number of examples."""
        return int(self.ends[-1])

    def choose(self, task: Task, count: int, rng: np.random.Generator) -> Examples:
        """Returns examples drawn without replacement."""
        places = rng.choice(self.size, count, replace=False)
        owners = np.searchsorted(self.ends, places, side="right")
        found: list[np.ndarray] = []
        for index in np.unique(owners) if count else [0]:
            arrays = task.examples(self.client_ids[index], "train")
            found = found or [np.empty((count, *a.shape[1:]), a.dtype) for a in arrays]
            own = owners == index
            first = self.ends[index] - len(arrays[0])
            for array, into in zip(arrays, found, strict=True):
                into[own] = array[places[own] - first]
        return tuple(found)


def _too_many(purpose: str, fraction: float, available: int) -> HyperparameterError:
    return HyperparameterError(
        f"{purpose}_fraction",
        fraction,
        f"one that asks for {available} examples at most",
    )
