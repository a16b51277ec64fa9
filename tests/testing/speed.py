"""Which parameters of a test run always, and which with the slow tests."""

import pytest


def some_fast(names, fast):
    """Parameters of which those not in `fast`, much like them, are slow tests."""
    unknown = set(fast) - set(names)
    assert not unknown, unknown
    return [
        name if name in fast else pytest.param(name, marks=pytest.mark.slow)
        for name in names
    ]
