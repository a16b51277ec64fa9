"""Assigns the rows of a memory that may have fewer rows than there are clients.

The memory reduction of Luo et al., "GradMA: A Gradient-Memory-based Accelerated
Federated Learning with Alleviated Catastrophic Forgetting", 2023, arXiv 2302.14307.
"""

from typing import NamedTuple

import attrs
import numpy as np
import tensorflow as tf

_FREE = -1


class Ownership(NamedTuple):
    """The owners of the rows.

    Attributes:
      owners: int32 [m], the index of a row's owner; -1 for a free row.
      ages: int32 [m], when the row was assigned to its owner: larger is later.
      counts: int32 [N], the rounds that a client has taken part in since it last became
        an owner; 0 for clients without a row.
    """

    owners: tf.Tensor
    ages: tf.Tensor
    counts: tf.Tensor


@attrs.frozen
class Assignment:
    """The rows of a round's clients.

    Attributes:
      rows: int32 [S], each client's row; -1 for clients without a row.
      is_new: bool [S], whether the row was assigned to the client in this round.
    """

    rows: tf.Tensor
    is_new: tf.Tensor


def nobody(num_rows: int, num_clients: int) -> Ownership:
    """Returns the ownership with all rows free."""
    return Ownership(
        tf.fill([num_rows], _FREE),
        tf.zeros([num_rows], tf.int32),
        tf.zeros([num_clients], tf.int32),
    )


def assign(
    ownership: Ownership, clients: tf.Tensor, takes_part: tf.Tensor
) -> tuple[Ownership, Assignment]:
    """Assigns rows to the clients of a round, in order.

    Owners keep their rows. Others take a free row, else evict the absent owner with the
    fewest participations (ties: the oldest) and reset its count; if no owner is absent,
    they get none.

    Args:
      ownership: The ownership before the round.
      clients: int32 [S], the round's clients, distinct.
      takes_part: bool [S]; clients that do not take part are skipped.
    """
    num_rows = ownership.owners.shape[0]
    in_round = tf.boolean_mask(clients, takes_part)
    busy = tf.reduce_any(
        tf.equal(ownership.owners[:, tf.newaxis], in_round[tf.newaxis, :]), axis=1
    )
    size = tf.shape(clients)[0]
    nowhere = Assignment(tf.fill([size], _FREE), tf.fill([size], False))
    if not num_rows:
        return ownership, nowhere

    def place(step, ownership, busy, assignment):
        client, counts = clients[step], ownership.counts
        own = tf.equal(ownership.owners, client)
        known = tf.reduce_any(own)
        row, there_is_one = _best_row(ownership, busy)
        row = tf.where(known, tf.argmax(own, output_type=tf.int32), row)
        taken = tf.logical_and(takes_part[step], tf.logical_or(known, there_is_one))
        is_new = tf.logical_and(taken, tf.logical_not(known))
        here = tf.logical_and(tf.equal(tf.range(num_rows), row), is_new)
        everybody = tf.range(tf.shape(counts)[0])
        leaves = tf.logical_and(is_new, tf.equal(everybody, ownership.owners[row]))
        counts = tf.where(leaves, 0, counts)
        counts += tf.cast(tf.logical_and(taken, tf.equal(everybody, client)), tf.int32)
        ownership = Ownership(
            tf.where(here, client, ownership.owners),
            tf.where(here, tf.reduce_max(ownership.ages) + 1, ownership.ages),
            counts,
        )
        at = tf.equal(tf.range(size), step)
        assignment = Assignment(
            tf.where(tf.logical_and(at, taken), row, assignment.rows),
            tf.where(at, is_new, assignment.is_new),
        )
        return step + 1, ownership, tf.logical_or(busy, here), assignment

    _, ownership, _, assignment = tf.while_loop(
        lambda step, *_: step < size, place, (0, ownership, busy, nowhere)
    )
    return ownership, assignment


def _best_row(ownership: Ownership, busy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the row for a client without one, int32 [], and whether there is one."""
    free = tf.equal(ownership.owners, _FREE)
    counts = tf.gather(ownership.counts, tf.maximum(ownership.owners, 0))
    # Free rows come first, in order; then rows by count and by age.
    largest = tf.constant(np.iinfo(np.int32).max)
    counts = tf.where(busy, largest, tf.where(free, 0, counts))
    ages = tf.where(free, -1, ownership.ages)
    rivals = tf.equal(counts, tf.reduce_min(counts))
    row = tf.argmin(tf.where(rivals, ages, largest), output_type=tf.int32)
    return row, tf.logical_not(tf.reduce_all(busy))
