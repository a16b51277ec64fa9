"""An event loop in its own thread, for calls from any thread, that can be ended.

TFF's `async_utils.AsyncThreadRunner` never ends, because its thread references it.
Every context would leak a thread and three file descriptors.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tensorflow_federated.python.common_libs import tracing

_T = TypeVar("_T")

# `end` waits at most this long for a call that is compiling its computation, which
# cannot be interrupted; the loop ends after the call.
_END_SECONDS = 5.0


class CallLoopEndedError(RuntimeError):
    """The loop was ended and no longer accepts calls."""


class CallLoop:
    """Runs coroutines for callers of any thread until it is ended."""

    def __init__(self):
        """Starts the thread."""
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(tracing.propagate_trace_context_task_factory)
        self._ended = False
        # Reentrant: a signal handler may end the loop while its thread starts a call.
        self._lock = threading.RLock()
        # The thread must not reference this object, which would never be collected.
        self._thread = threading.Thread(
            target=_run, args=[self._loop], name="tff_calls", daemon=True
        )
        self._thread.start()

    def run(self, call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Runs a coroutine to completion.

        Args:
          call: Returns the coroutine.

        Returns:
          The coroutine's result.

        Raises:
          CallLoopEndedError: If the loop has been ended.
          BaseException: Any exception of the coroutine.
        """
        with self._lock:
            if self._ended:
                raise CallLoopEndedError("The loop was ended.")
            future = asyncio.run_coroutine_threadsafe(call(), self._loop)
        return future.result()

    def end(self) -> None:
        """Waits for running calls, then ends the thread; idempotent."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._loop.call_soon_threadsafe(_stop_when_idle, self._loop)
        # The garbage collector may call this in any thread, even the loop's own.
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
