"""Tests of runtimes compare with TFF's own, which is their default."""

import pytest
import tensorflow_federated as tff

from tff_algos.execution import client_passes


@pytest.fixture(autouse=True)
def native_by_default(native_context):
    with tff.framework.get_context_stack().install(native_context):
        yield


@pytest.fixture
def no_streaming(monkeypatch):
    """Fails the test if clients run one by one."""

    def run(self, inputs, workers):
        raise AssertionError(f"{inputs.num_clients} clients ran one by one")

    def forbid():
        monkeypatch.setattr(client_passes.StreamingPass, "run", run)

    return forbid
