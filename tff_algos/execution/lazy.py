"""Values that are computed on first use."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Lazy(Generic[_T]):
    """A value computed once, on first use by any thread."""

    def __init__(self, make: Callable[[], _T]):
        self._make = make
        self._lock = threading.Lock()

    @property
    def value_if_made(self) -> _T | None:
        """The value; `None` if it was not used yet."""
        return None if self._make is not None else self._value

    def __call__(self) -> _T:
        with self._lock:
            if self._make is not None:
                self._value = self._make()
                self._make = None
        return self._value
