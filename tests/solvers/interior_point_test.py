"""The interior point method finds what pivots find."""

import numpy as np
import pytest

from tff_algos.solvers import block_pivoting, min_norm


def box(size, radius):
    """Bounds at a distance around uniform weights, and those weights."""
    start = np.full(size, 1 / max(size, 1))
    return np.maximum(0, start - radius), np.minimum(1, start + radius), start


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("decades", [0, 5, 12])
def test_the_interior_point_method_finds_what_pivots_find(
    monkeypatch, untraced, decades
):
    rng = np.random.default_rng(3)
    rows = unit(rng.normal(size=(40, 60))) * 10 ** -rng.uniform(
        0, decades, size=(40, 1)
    )
    arguments = (rows @ rows.T, *box(40, 0.05))
    pivoted = min_norm.solve(*arguments)
    monkeypatch.setattr(block_pivoting, "_MAX_PIVOTS", 0)
    interior = min_norm.solve(*arguments)
    assert interior.accepted and interior.iterations > 5
    expected = pivoted.weights.numpy() @ rows
    difference = interior.weights.numpy() @ rows - expected
    assert np.linalg.norm(difference) <= 1e-5 * np.linalg.norm(expected)
