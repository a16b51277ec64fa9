"""Who owns the rows of a small memory: against plain Python, and by hand."""

import functools

import attrs
import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tests.testing.gradma_reference import MemoryReduction
from tff_algos.finalizers import row_ownership

NUM_CLIENTS = 6


@functools.cache
def assign(num_rows):
    """`row_ownership.assign`, traced once for all cohorts."""
    specs = row_ownership.Ownership(
        *(tf.TensorSpec([n], tf.int32) for n in (num_rows, num_rows, NUM_CLIENTS))
    )
    cohort = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.bool)
    return tf.function(row_ownership.assign, input_signature=[specs, *cohort])


@attrs.frozen
class Round:
    """Owners and counts after a round, and where its clients belong, in NumPy."""

    owners: np.ndarray
    counts: np.ndarray
    rows: np.ndarray
    is_new: np.ndarray


def rounds(num_rows, cohorts):
    """What each round comes to; a cohort is clients, or clients and who takes part."""
    ownership = row_ownership.nobody(num_rows, NUM_CLIENTS)
    found = []
    for cohort in cohorts:
        clients, takes_part = cohort if isinstance(cohort, tuple) else (cohort, None)
        if takes_part is None:
            takes_part = [True] * len(clients)
        ownership, assignment = assign(num_rows)(
            ownership, tf.constant(clients, tf.int32), tf.constant(takes_part, tf.bool)
        )
        found.append(
            Round(
                ownership.owners.numpy(),
                ownership.counts.numpy(),
                assignment.rows.numpy(),
                assignment.is_new.numpy(),
            )
        )
    return found


def owners_of(found):
    return set(found.owners.tolist()) - {-1}


@st.composite
def histories(draw):
    """Cohorts of different clients, some of whom do not take part."""
    cohorts = []
    for _ in range(draw(st.integers(1, 8))):
        clients = draw(st.permutations(range(NUM_CLIENTS)))
        clients = clients[: draw(st.integers(0, NUM_CLIENTS))]
        size = len(clients)
        # Mostly all of them.
        takes_part = draw(
            st.one_of(
                st.just([True] * size),
                st.lists(st.booleans(), min_size=size, max_size=size),
            )
        )
        cohorts.append((clients, takes_part))
    return cohorts


@pytest.mark.parametrize("num_rows", [0, 1, 2, 4, NUM_CLIENTS, NUM_CLIENTS + 2])
@hypothesis.given(cohorts=histories())
@hypothesis.settings(max_examples=40, deadline=None, derandomize=True)
def test_every_history_is_that_of_plain_python(num_rows, cohorts):
    reference = MemoryReduction(num_rows)
    before = np.full(num_rows, -1)
    for cohort, found in zip(cohorts, rounds(num_rows, cohorts), strict=True):
        takes_part = [k for k, here in zip(*cohort, strict=True) if here]
        former_owners = set(before.tolist()) - {-1}
        new = reference.take(takes_part)

        # As the reference has it.
        assert owners_of(found) == set(reference.counts)
        expected_counts = [reference.counts.get(k, 0) for k in range(NUM_CLIENTS)]
        assert found.counts.tolist() == expected_counts
        found_new = {k for k, n in zip(cohort[0], found.is_new, strict=True) if n}
        assert found_new == new

        # A row has one owner, who finds it; the others have none.
        owned = found.owners[found.owners >= 0]
        assert len(owned) == len(set(owned)) <= num_rows
        assert not new & former_owners
        for client, row in zip(cohort[0], found.rows, strict=True):
            if client in takes_part and client in owners_of(found):
                assert found.owners[row] == client
            else:
                assert row == -1

        # Nobody moves: a row has a new owner only if it is new to that client.
        changed = found.owners[found.owners != before]
        assert set(changed.tolist()) == new
        before = found.owners


def test_the_owner_with_the_smallest_count_leaves():
    *_, last = rounds(2, [[0, 1], [0], [2]])
    assert owners_of(last) == {0, 2}
    assert last.counts.tolist() == [2, 0, 1, 0, 0, 0]
    assert last.rows.tolist() == [1] and last.is_new.tolist() == [True]


def test_of_equal_counts_the_oldest_leaves():
    *_, first, second, third = rounds(3, [[4, 2, 0], [1], [3], [5]])
    assert owners_of(first) == {2, 0, 1}
    assert owners_of(second) == {0, 1, 3}
    # Not the client of the row that was the first to be taken: 1 has it by now.
    assert owners_of(third) == {1, 3, 5}


def test_who_leaves_and_comes_back_is_new_with_a_count_of_one():
    *_, away, back = rounds(1, [[0], [0], [0], [1], [0]])
    assert away.counts.tolist()[:2] == [0, 1]
    assert back.is_new.tolist() == [True]
    assert back.counts.tolist()[:2] == [1, 0]


def test_a_client_of_the_round_does_not_leave_for_another():
    _, last = rounds(2, [[0, 1], [2, 0, 3]])
    # 2 comes before 0 and has the row of 1; nothing is left for 3.
    assert owners_of(last) == {0, 2}
    assert last.rows.tolist() == [1, 0, -1]
    assert last.is_new.tolist() == [True, False, False]
    assert last.counts.tolist() == [2, 0, 1, 0, 0, 0]


def test_a_cohort_larger_than_the_memory_fills_it_in_its_order():
    (found,) = rounds(2, [[5, 3, 1, 0]])
    assert found.owners.tolist() == [5, 3]
    assert found.rows.tolist() == [0, 1, -1, -1]


def test_who_does_not_take_part_neither_stays_for_it_nor_gets_a_row():
    _, last = rounds(2, [[0, 1], ([0, 2, 3], [False, True, False])])
    assert owners_of(last) == {2, 1}
    assert last.rows.tolist() == [-1, 0, -1]
    assert last.counts.tolist() == [0, 1, 1, 0, 0, 0]


def test_without_rows_nobody_owns_any():
    (found,) = rounds(0, [[3, 1]])
    assert found.rows.tolist() == [-1, -1] and not found.is_new.any()
    assert found.counts.tolist() == [0] * NUM_CLIENTS
