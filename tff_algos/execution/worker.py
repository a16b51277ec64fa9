"""The child process of TFF's C++ runtime, which never outlives this one.

On Linux, the kernel ends the worker when this process dies for any reason, including
`kill -9` and `os._exit`. On other systems, only a normal exit of the interpreter ends
it.
"""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
import weakref

import portpicker

from tff_algos import child_processes

_POLL_SECONDS = 0.01
_START_ATTEMPTS = 3


class NativeRuntimeError(RuntimeError):
    """TFF's C++ runtime cannot run the computation; the message is one line."""


class WorkerStartError(NativeRuntimeError):
    """The worker process did not start."""


class WorkerDiedError(NativeRuntimeError):
    """The worker process ended while it was needed; the next call starts another."""


class Worker:
    """A running worker process.

    Attributes:
      port: The TCP port on localhost that the worker serves.
      pid: The worker's process id.
    """

    def __init__(
        self,
        binary: pathlib.Path,
        arguments: tuple[str, ...] = (),
        log: pathlib.Path | None = None,
        timeout_seconds: float = 60.0,
    ):
        """Starts the process and waits until it serves.

        Args:
          binary: The worker's executable.
          arguments: Its command line, except for the port.
          log: File that its output is appended to; `None` drops it.
          timeout_seconds: How long to wait for it.

        Raises:
          WorkerStartError: If the process ends or does not serve in time.
        """
        self._log = log
        # Another process may take the port before the worker binds it.
        for _ in range(_START_ATTEMPTS):
            self.port = portpicker.pick_unused_port()
            command = (str(binary), f"--port={self.port}", *arguments)
            self._process, self._exited = _spawn(command, log)
            self.pid = self._process.pid
            self._finalizer = weakref.finalize(
                self, _kill, self._process, self._exited, os.getpid()
            )
            if self._wait_until_serving(timeout_seconds):
                return
            self.kill()
        raise WorkerStartError(
            f"TFF's worker {binary} did not start: {self.describe_end()}."
        )

    def is_alive(self) -> bool:
        """Returns whether the process is running, according to the kernel."""
        if not self._exited.is_set() and hasattr(os, "waitid"):
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            with contextlib.suppress(ChildProcessError):
                if os.waitid(os.P_PID, self.pid, flags) is None:
                    return True
            # The process has just exited; the thread that waits for it will notice.
            self._exited.wait()
        return not self._exited.is_set()

    def wait(self, timeout_seconds: float) -> bool:
        """Waits for the process to end; returns whether it did."""
        return self._exited.wait(timeout_seconds)

    def kill(self) -> None:
        """Kills the process and waits for its exit; idempotent."""
        self._finalizer()

    def describe_end(self) -> str:
        """Returns how the process ended and where to find the reason."""
        code = self._process.returncode
        if code is None:
            end = "it runs but does not answer"
        elif code < 0:
            end = f"it was ended by signal {-code} ({signal.strsignal(-code)})"
        else:
            end = f"it exited with status {code}"
        if self._log is None:
            return f"{end} (give worker_log=PATH to keep what it writes)"
        return f"{end}, see {self._log}"

    def _wait_until_serving(self, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while self.is_alive() and time.monotonic() < deadline:
            try:
                socket.create_connection(("localhost", self.port), timeout=1).close()
            except OSError:
                time.sleep(_POLL_SECONDS)
            else:
                return self.is_alive()
        return False


def _spawn(
    command: tuple[str, ...], log: pathlib.Path | None
) -> tuple[subprocess.Popen, threading.Event]:
    """Starts `command`; the event is set once the process has exited.

    A separate thread starts the child and waits for its exit, since the child is killed
    when the thread that started it ends.
    """
    command = child_processes.signalled_at_death(command, signal.SIGKILL)
    environment = dict(os.environ)
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    started, exited = threading.Event(), threading.Event()
    outcome = []

    def run():
        try:
            with open(log or os.devnull, "ab") as output:
                # A separate process group: only this process handles Ctrl-C.
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    process_group=0,
                )
        except OSError as error:
            outcome.append(error)
            return
        else:
            outcome.append(process)
        finally:
            started.set()
        process.wait()
        exited.set()

    threading.Thread(target=run, name="tff_worker", daemon=True).start()
    started.wait()
    if isinstance(outcome[0], OSError):
        raise WorkerStartError(f"TFF's worker did not start: {outcome[0]}.")
    return outcome[0], exited


def _kill(process: subprocess.Popen, exited: threading.Event, owner: int) -> None:
    if os.getpid() != owner:
        return  # In a fork of the owner, which does not own the worker.
    while not exited.is_set():
        process.kill()
        exited.wait(1.0)
