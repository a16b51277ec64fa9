"""How algorithms that remember are compared with others."""

import numpy as np

from tests.testing.remembering_cohorts import Training, run
from tests.testing.remembering_processes import (
    BATCH,
    CLIENTS,
    EPOCHS,
    NUM_CLIENTS,
    RATE,
    cohort,
)


def one_step_each(numbers=(0, 1, 2, 3), **kwargs):
    return cohort(numbers, batch_size=None, epochs=1, **kwargs)


def trained(number, start, **kwargs):
    """The weights of a client after its local steps, in NumPy."""
    return CLIENTS[number].local_sgd(start, RATE, BATCH, EPOCHS, **kwargs)[0]


def after(process, *cohorts):
    """The weights after one round per cohort."""
    return run(process, NUM_CLIENTS, *cohorts).weights


def assert_same_bits(left, right, *cohorts):
    found = after(left, *cohorts)
    assert np.max(np.abs(found - Training(left, NUM_CLIENTS).weights)) > 1e-2
    np.testing.assert_array_equal(found, after(right, *cohorts))


def assert_close(found, expected, rtol=1e-9, atol=1e-10):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def assert_differ(left, right):
    assert np.max(np.abs(left - right)) > 1e-3
