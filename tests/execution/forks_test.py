"""What was made before a fork says so in the child."""

import asyncio
import inspect

import pytest
import tensorflow_federated as tff

from tff_algos import execution
from tff_algos.execution import forks


def _async_context():
    return execution.AsyncContext(execution.InProcessContext())


def test_in_its_own_process_everything_goes_on():
    forks.Owner().check("The context")


def test_another_process_is_told(monkeypatch):
    owner = forks.Owner()
    monkeypatch.setattr(forks.os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="^The context was created before .* forked"):
        owner.check("The context")


@pytest.mark.parametrize("make", [execution.InProcessContext, _async_context])
def test_contexts_tell_children_instead_of_waiting(make, monkeypatch):
    @tff.tensorflow.computation
    def one():
        return 1

    context = make()
    monkeypatch.setattr(forks.os, "getpid", lambda: -1)
    forked = pytest.raises(RuntimeError, match="context was created before .* forked")
    with tff.framework.get_context_stack().install(context), forked:
        asyncio.run(_awaited(one()))


async def _awaited(result):
    return await result if inspect.isawaitable(result) else result
