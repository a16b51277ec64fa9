"""Ray with two workers, for all tests of a process that ask for them."""

import pytest

from tests.testing import ray_workers


@pytest.fixture(scope="session")
def two_workers():
    pytest.importorskip("ray", reason="ray is not installed (requirements-ray.txt)")
    context = ray_workers.start()
    yield context
    context.close()
