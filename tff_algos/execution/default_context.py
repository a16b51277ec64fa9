"""TFF's default context where nobody has set one: the in-process one, made when used."""

import threading
from typing import Any

import tensorflow_federated as tff


def is_installed() -> bool:
    """Returns whether this thread is inside of a `with` statement's context.

    Another default would then not be used.
    """
    return len(tff.framework.get_context_stack()._stack) > 1


class DefaultContext(tff.framework.SyncContext):
    """An in-process context that is created by the first computation that runs.

    Until then TensorFlow's devices are not initialized, so a program can still configure
    them, set another context, or fork.
    """

    def __init__(self) -> None:
        self._created: tff.framework.SyncContext | None = None
        self._lock = threading.Lock()

    def created(self) -> tff.framework.SyncContext:
        """Returns the `InProcessContext`, created by the first call."""
        # Its module needs TFF's import, which sets this context, to be complete.
        from tff_algos.execution import in_process

        with self._lock:
            if self._created is None:
                self._created = in_process.InProcessContext()
            return self._created

    def invoke(self, comp: Any, arg: Any) -> Any:
        """Runs a computation, as `InProcessContext.invoke` does."""
        return self.created().invoke(comp, arg)
