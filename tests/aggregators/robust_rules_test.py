"""Robust rules against NumPy and SciPy."""

import hypothesis
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import tensorflow as tf
from hypothesis import strategies as st

from tff_algos.aggregators import robust_rules

COUNTS = st.integers(1, 9)
SEEDS = st.integers(0, 1000)
quick = hypothesis.settings(max_examples=25, deadline=None)


def _rows(count, seed):
    """Rows of two tensors, [n, 2, 3] and [n]."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 2, 3)), rng.normal(size=count)


def _flat(rows):
    first, second = rows
    return np.column_stack([np.reshape(first, [len(second), -1]), second])


def _apply(rule, rows, weights=None):
    weights = np.ones(len(rows[1])) if weights is None else weights
    results, shares = rule([tf.constant(each) for each in rows], tf.constant(weights))
    return np.append(np.ravel(results[0]), results[1]), np.asarray(shares)


@quick
@hypothesis.given(COUNTS, SEEDS)
def test_the_median_is_numpys(count, seed):
    rows = _rows(count, seed)
    found, shares = _apply(robust_rules.median(), rows)
    np.testing.assert_allclose(found, np.median(_flat(rows), axis=0), rtol=1e-12)
    assert shares.sum() == pytest.approx(1)


@quick
@hypothesis.given(COUNTS, SEEDS, st.sampled_from([0.0, 0.1, 0.25, 0.4]))
def test_the_trimmed_mean_is_scipys(count, seed, share):
    rows = _rows(count, seed)
    found, shares = _apply(robust_rules.trimmed_mean(share), rows)
    expected = scipy.stats.trim_mean(_flat(rows), share, axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert shares.sum() == pytest.approx(1)


def test_the_trimmed_share_of_a_whole_number_of_clients_is_that_number():
    squares = np.arange(100.0) ** 2
    rows = (squares[:, np.newaxis], squares)
    found, _ = _apply(robust_rules.trimmed_mean(0.29), rows)
    np.testing.assert_allclose(found, [squares[29:71].mean()] * 2, rtol=1e-12)


def test_shares_of_a_median_are_those_of_the_coordinates_that_it_takes():
    rows = np.array([[0.0, 9.0, 1.0], [1.0, 5.0, 2.0], [2.0, 7.0, 3.0]])
    _, shares = robust_rules.median()([tf.constant(rows)], tf.ones(3, tf.float64))
    np.testing.assert_allclose(shares, [0, 2 / 3, 1 / 3])


@quick
@hypothesis.given(st.integers(2, 9), SEEDS)
@hypothesis.example(2, 96)  # Two rows of almost the same weight.
def test_nothing_is_nearer_to_all_rows_than_the_geometric_median(count, seed):
    rows = _rows(count, seed)
    weights = np.random.default_rng(seed).uniform(0.5, 2, count)
    found, shares = _apply(robust_rules.geometric_median(), rows, weights)
    flat = _flat(rows)

    def distance(point):
        return weights @ np.linalg.norm(flat - point, axis=1)

    best = scipy.optimize.minimize(
        distance, flat.mean(axis=0), method="Nelder-Mead", options={"maxiter": 20000}
    )
    assert distance(found) <= best.fun * (1 + 1e-6)
    np.testing.assert_allclose(shares @ flat, found, rtol=1e-9, atol=1e-12)


def test_the_geometric_median_may_be_a_row_and_outliers_hardly_move_it():
    flat = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    far = np.vstack([flat, [[1e9, 0.0]]])
    rule = robust_rules.geometric_median()
    (found,), _ = rule([tf.constant(flat)], tf.ones(5, tf.float64))
    np.testing.assert_allclose(found, [0, 0], atol=1e-6)
    (found,), shares = rule([tf.constant(far)], tf.ones(6, tf.float64))
    assert np.linalg.norm(found) < 1 and shares[5] < 1e-8


@pytest.mark.parametrize(
    ("numbers", "weights", "expected"),
    [
        ([0, 0, 10], [1, 1, 10], 10),
        # Six clients that send the same with a thousandth of the weight.
        ([5] * 6 + [0, 1, 2, 3, 4], [0.1] * 6 + [1000] * 5, 2),
        ([-1e8, -1e8, -1e9, 1, 2, 4], [1, 1, 1, 10, 10, 10], 2),
    ],
)
def test_weight_decides_where_the_geometric_median_is(numbers, weights, expected):
    rows, weights = tf.constant(numbers, tf.float64)[:, None], np.array(weights, float)
    (found,), _ = robust_rules.geometric_median()([rows], tf.constant(weights))
    np.testing.assert_allclose(found, [expected], atol=1e-6)


def _krum_scores(flat, num_malicious):
    distances = ((flat[:, None] - flat) ** 2).sum(axis=-1)
    nearest = max(len(flat) - num_malicious - 2, 1)
    return np.sort(distances, axis=1)[:, 1 : nearest + 1].sum(axis=1)


@quick
@hypothesis.given(st.integers(3, 9), SEEDS, st.integers(0, 3), st.integers(1, 4))
def test_krum_chooses_the_rows_of_its_definition(count, seed, malicious, chosen):
    rows = _rows(count, seed)
    found, shares = _apply(robust_rules.krum(malicious, chosen), rows)
    scores = _krum_scores(_flat(rows), malicious)
    taken = np.flatnonzero(shares)
    assert len(taken) == min(chosen, count)
    # Two rows that are each other's nearest have equal scores.
    assert scores[taken].max() <= np.sort(scores)[len(taken) - 1] * (1 + 1e-9)
    np.testing.assert_allclose(found, _flat(rows)[taken].mean(axis=0), rtol=1e-9)


def test_krum_leaves_colluding_outliers_out():
    rng = np.random.default_rng(0)
    flat = np.vstack([rng.normal(size=(8, 5)), 100 + rng.normal(size=(3, 5))])
    rule = robust_rules.krum(3, 4)
    _, shares = rule([tf.constant(flat)], tf.ones(11, tf.float64))
    assert not np.any(shares[8:]) and np.count_nonzero(shares) == 4
