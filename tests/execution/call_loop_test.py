"""The loop of calls: for callers of any thread, until it is ended."""

import asyncio
import threading
import time
from concurrent import futures

import pytest

from tff_algos.execution import call_loop


@pytest.fixture
def loop():
    made = call_loop.CallLoop()
    yield made
    made.end()


async def plus_one(x):
    await asyncio.sleep(0.01)
    return x + 1


def test_calls_of_many_threads_have_their_own_results(loop):
    with futures.ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda x: loop.run(lambda: plus_one(x)), range(20))
        assert list(found) == list(range(1, 21))


def test_what_a_call_raises_its_caller_gets(loop):
    async def fail():
        raise ZeroDivisionError("by design")

    with pytest.raises(ZeroDivisionError, match="by design"):
        loop.run(fail)
    assert loop.run(lambda: plus_one(1)) == 2


def test_a_call_that_runs_comes_to_its_end_before_the_loop_does(loop):
    began = threading.Event()

    async def slow():
        began.set()
        await asyncio.sleep(0.2)
        return "done"

    with futures.ThreadPoolExecutor(1) as thread:
        result = thread.submit(loop.run, slow)
        began.wait()
        start = time.monotonic()
        loop.end()
        assert time.monotonic() - start > 0.1
        assert result.result() == "done"


def test_an_ended_loop_runs_no_calls_and_leaves_no_thread():
    names = [thread.name for thread in threading.enumerate()]
    loop = call_loop.CallLoop()
    loop.end()
    loop.end()
    assert [thread.name for thread in threading.enumerate()] == names
    with pytest.raises(call_loop.CallLoopEndedError):
        loop.run(lambda: plus_one(1))
