"""Tests of runtimes compare with TFF's own, which is their default."""

import pytest
import tensorflow_federated as tff


@pytest.fixture(autouse=True)
def native_by_default(native_context):
    with tff.framework.get_context_stack().install(native_context):
        yield
