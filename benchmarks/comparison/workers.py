"""What is measured in a process of its own, and asked in turns with others."""

import multiprocessing
from collections.abc import Callable
from typing import Any


class Worker:
    """A function in a process of its own, at the other end of a connection."""

    def __init__(self, serve: Callable[..., None], *arguments: Any):
        """Starts the process.

        Args:
          serve: Is called with a `multiprocessing.connection.Connection` and
            `arguments`; sends one thing first, then answers what it receives.
          *arguments: Can be pickled.
        """
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, *arguments), daemon=True
        )
        self._process.start()
        theirs.close()  # So that its end is seen when the process dies.

    def receive(self) -> Any:
        """Returns what the process sends next; None if it died."""
        try:
            return self._connection.recv()
        except (EOFError, ConnectionError):
            return None

    def ask(self, request: Any) -> Any:
        """Returns the answer to a request; None if the process died."""
        try:
            self._connection.send(request)
        except ConnectionError:
            return None
        return self.receive()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()
        self._connection.close()
