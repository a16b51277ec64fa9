"""Ray with two workers, for all tests of this folder that ask for them."""

import pytest

from tests.testing import ray_workers


# Not longer: Ray would take the processors of other tests, and refuse to start anew.
@pytest.fixture(scope="package")
def two_workers():
    pytest.importorskip("ray", reason="ray is not installed (requirements-ray.txt)")
    context = ray_workers.start()
    yield context
    context.close()
