"""What every test needs: TFF made importable, and its runtime well behaved."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest

from tff_algos import compat, execution  # noqa: F401


@pytest.fixture(scope="session", autouse=True)
def native_context():
    """Runs the tests' computations on TFF's own runtime, and ends it with them."""
    context = execution.set_native_context()
    yield context
    context.close()
