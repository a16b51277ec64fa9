"""Processes made by forking, which lack the threads of TensorFlow and of Python."""

import os


class Owner:
    """Remembers in which process something was made."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def check(self, what: str) -> None:
        """Raises `RuntimeError` in a child made by forking; `what` is what was made."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"{what} was created before this process was forked, and TensorFlow does "
                "not survive a fork: start processes by 'spawn'."
            )
