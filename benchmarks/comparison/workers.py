"""Worker processes for measurements that alternate between several processes."""

import multiprocessing
from collections.abc import Callable
from typing import Any


class Worker:
    """A function that runs in its own process, at the other end of a connection."""

    def __init__(self, serve: Callable[..., None], *arguments: Any):
        """Starts the process.

        Args:
          serve: Called with a `multiprocessing.connection.Connection` and `arguments`;
            sends one message first, then answers requests.
          *arguments: Picklable arguments.
        """
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, *arguments), daemon=True
        )
        self._process.start()
        theirs.close()  # So that the process's death closes the connection.

    def receive(self) -> Any:
        """Returns the next message of the process; None if it died."""
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
