"""Divides examples among clients by classes that belong to groups.

The Pachinko allocation of Reddi et al., "Adaptive federated optimization", ICLR 2021
(https://arxiv.org/abs/2003.00295), appendix F, who divide CIFAR-100 in this way after
Li and McCallum, "Pachinko allocation: DAG-structured mixture models of topic
correlations", ICML 2006: a client prefers few groups and all classes of a group.
"""

import numpy as np

from tasks.task import TaskError
from tff_algos.clients.batching import derive_seed

# Concentrations of the Dirichlet distributions.
GROUPS = 0.1
CLASSES_OF_A_GROUP = 10.0


def divide(
    labels: np.ndarray,
    group_of_class: np.ndarray,
    *,
    num_clients: int,
    examples_per_client: int,
    seed: int,
) -> tuple[np.ndarray, ...]:
    """Divides examples among clients, with the same number for every client.

    A client draws probabilities of the groups, and of the classes of each group. Then,
    for each example, it draws a group, one of its classes and an example of the class
    that has not been assigned yet. Exhausted classes and groups are skipped.

    Args:
      labels: int [n], the examples' labels.
      group_of_class: int [classes], the group that a label belongs to.
      num_clients: At least 1.
      examples_per_client: At least 1.
      seed: Seed of the division.

    Returns:
      The examples of each client, int64 [examples_per_client] distinct indices in
      ascending order, determined by the arguments.

    Raises:
      TaskError: If there are too few examples.
    """
    needed = num_clients * examples_per_client
    if needed > len(labels):
        raise TaskError(
            f"--partition=pachinko needs {needed} training examples or more "
            f"({examples_per_client} for each of {num_clients} clients), the dataset "
            f"has {len(labels)}."
        )
    rng = np.random.default_rng(derive_seed(seed, "pachinko"))
    num_classes = len(group_of_class)
    untaken = [rng.permutation(np.flatnonzero(labels == c)) for c in range(num_classes)]
    left = np.array([len(members) for members in untaken])
    parts = []
    for _ in range(num_clients):
        classes = _draw_classes(group_of_class, left, examples_per_client, rng)
        counts = np.bincount(classes, minlength=num_classes)
        part = [
            untaken[c][left[c] - counts[c] : left[c]] for c in np.flatnonzero(counts)
        ]
        left -= counts
        parts.append(np.sort(np.concatenate(part)))
    return tuple(parts)


def _draw_classes(
    group_of_class: np.ndarray, left: np.ndarray, size: int, rng: np.random.Generator
) -> np.ndarray:
    """Draws one client's classes, int64 [size], each at most `left` times."""
    num_groups = group_of_class.max() + 1
    of_groups = rng.dirichlet(np.full(num_groups, GROUPS))
    # No group has probability zero, because it may be the only one left.
    of_groups = np.maximum(of_groups, np.finfo(np.float64).tiny)
    # Independent gamma variables are unnormalized Dirichlet variables.
    of_classes = rng.gamma(CLASSES_OF_A_GROUP, size=len(group_of_class))
    left = left.copy()
    drawn = np.empty(size, np.int64)
    for position in range(size):
        weights = np.where(left > 0, of_classes, 0.0)
        totals = np.bincount(group_of_class, weights, num_groups)
        group_weights = np.where(totals > 0.0, of_groups, 0.0)
        group = _draw(group_weights, rng)
        drawn[position] = _draw(np.where(group_of_class == group, weights, 0.0), rng)
        left[drawn[position]] -= 1
    return drawn


def _draw(weights: np.ndarray, rng: np.random.Generator) -> int:
    """Draws an index with probability proportional to weights, not all zero."""
    return int(rng.choice(len(weights), p=weights / weights.sum()))
