"""An event loop in a thread of its own, for calls from any thread, that can be ended.

TFF's own (`async_utils.AsyncThreadRunner`) never ends: its thread holds it. Every
context would leave a thread behind, and three file descriptors.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tensorflow_federated.python.common_libs import tracing

_T = TypeVar("_T")

# A call that compiles its computation cannot be interrupted. `end` does not wait
# longer for it; the loop ends behind it.
_END_SECONDS = 5.0


class CallLoopEndedError(RuntimeError):
    """The loop runs no calls any more."""


class CallLoop:
    """Runs coroutines for callers of any thread until it is ended."""

    def __init__(self):
        """Starts the thread."""
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(tracing.propagate_trace_context_task_factory)
        self._ended = False
        # A signal handler may end the loop while its thread begins a call.
        self._lock = threading.RLock()
        # The thread must not hold this object, or nothing would ever drop it.
        self._thread = threading.Thread(
            target=_run, args=[self._loop], name="tff_calls", daemon=True
        )
        self._thread.start()

    def run(self, call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Runs a coroutine to its end.

        Args:
          call: Makes the coroutine.

        Returns:
          Its result.

        Raises:
          CallLoopEndedError: If the loop was ended before.
          BaseException: What the coroutine raises.
        """
        with self._lock:
            if self._ended:
                raise CallLoopEndedError("The loop was ended.")
            future = asyncio.run_coroutine_threadsafe(call(), self._loop)
        return future.result()

    def end(self) -> None:
        """Lets running calls come to their end, then ends the thread; idempotent."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._loop.call_soon_threadsafe(_stop_when_idle, self._loop)
        # Garbage, such as a context, may be collected in any thread.
        if threading.current_thread() is not self._thread:
            self._thread.join(_END_SECONDS)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop_when_idle(loop: asyncio.AbstractEventLoop) -> None:
    running = asyncio.all_tasks(loop)
    if running:
        running.pop().add_done_callback(lambda _: _stop_when_idle(loop))
    else:
        loop.stop()
