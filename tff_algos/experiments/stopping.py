"""Stopping between rounds on SIGINT, SIGTERM and SIGHUP."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

# Of a terminal, or a comparison, that is gone.
_HANG_UP = signal.SIGHUP
_NUMBERS = (signal.SIGINT, signal.SIGTERM, _HANG_UP)
# `timeout` sends SIGTERM to the process, and then to its group.
_SAME_STOP_SECONDS = 0.2


class StopOnSignal:
    """Records a stop signal instead of ending the process; a second one does not wait.

    As a context manager it handles SIGINT, SIGTERM and, unless it is ignored as under
    `nohup`, SIGHUP. It does so in the main thread only, because Python does not allow
    signal handlers in others. SIGHUP never counts as the second signal, since the kernel
    may send it several times, once for each thread of a parent that is killed; nor does
    SIGTERM at once after the first.

    Python runs handlers between two steps of its own, hence not before a computation of
    many seconds in TensorFlow has ended. So a thread reads the numbers of signals from a
    socket, which Python writes at once, and tells the user what happens.

    Attributes:
      may_exit: Whether a second signal ends the process, even if it computes.
      received: The signal that asked to stop, or None.
    """

    def __init__(
        self, notice: Callable[[], str] | None = None, *, may_exit: bool = False
    ) -> None:
        """Initializes the handling.

        Args:
          notice: Returns what to print when a signal asks to stop; called in a thread.
          may_exit: Whether a second signal ends the process, even if it computes;
            otherwise it raises KeyboardInterrupt once the computation has ended.
        """
        self.received: signal.Signals | None = None
        self._notice = notice
        self.may_exit = may_exit
        self._previous: dict[signal.Signals, object] = {}
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._previous_fd = -1
        self._stopped_at = 0.0

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in _NUMBERS:
            if number != _HANG_UP or signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        self._sockets = reader, writer = socket.socketpair()
        writer.setblocking(False)
        self._previous_fd = signal.set_wakeup_fd(
            writer.fileno(), warn_on_full_buffer=False
        )
        self._watcher = threading.Thread(
            target=self._watch, args=(reader,), name="tff_algos-signals", daemon=True
        )
        self._watcher.start()
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
        if self._sockets is not None:
            signal.set_wakeup_fd(self._previous_fd)
            reader, writer = self._sockets
            writer.close()  # Ends the watcher.
            self._watcher.join()
            reader.close()
            self._sockets = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received is None:
            self.received = signal.Signals(number)
            self._stopped_at = self._stopped_at or time.monotonic()
        elif not self._is_same_stop(number):
            raise KeyboardInterrupt

    def _is_same_stop(self, number: int) -> bool:
        """Returns whether a signal belongs to the stop that was asked for before."""
        soon = time.monotonic() - self._stopped_at < _SAME_STOP_SECONDS
        return number == _HANG_UP or (number == signal.SIGTERM and soon)

    def _watch(self, reader: socket.socket) -> None:
        count = 0
        while received := reader.recv(1):
            number = received[0]
            if number not in _NUMBERS or (count and self._is_same_stop(number)):
                continue
            count += 1
            self._stopped_at = self._stopped_at or time.monotonic()
            if count == 1 and self._notice is not None:
                _print(self._notice())
            elif count > 1 and self.may_exit:
                _print("stopped now")
                # The kernel releases locks, and files are written atomically.
                os._exit(128 + number)


def _print(line: str) -> None:
    # Apart from the line of a progress bar.
    print(f"\n{line}", file=sys.stderr, flush=True)
