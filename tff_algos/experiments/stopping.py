"""Stopping between rounds on SIGINT and SIGTERM."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class StopOnSignal:
    """Records a stop signal instead of ending the process; a second one raises.

    As a context manager it handles SIGINT and SIGTERM. It does so in the main thread
    only, because Python does not allow signal handlers in others.

    Attributes:
      received: The signal that asked to stop, or None.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
