"""A context of this package for code that awaits its computations, such as `tff.program`.

Programs install it inside of TFF's own context for them:

    context = tff_algos.execution.AsyncContext(tff_algos.execution.InProcessContext())
    tff.framework.set_default_context(tff.program.NativeFederatedContext(context))
"""

import asyncio
import contextvars
from concurrent import futures
from typing import Any

import tensorflow_federated as tff

from tff_algos.execution import forks


class AsyncContext(tff.framework.AsyncContext):
    """A TFF context whose computations are awaited while the event loop goes on.

    They run one at a time, in the order in which they were invoked: each occupies all
    CPUs by itself.
    """

    def __init__(self, context: tff.framework.SyncContext):
        """Initializes the context.

        Args:
          context: What runs the computations, such as an `InProcessContext`.

        Raises:
          TypeError: If it is not a synchronous context.
        """
        if not isinstance(context, tff.framework.SyncContext):
            raise TypeError(
                "context: Expected a tff.framework.SyncContext, found "
                f"{type(context).__name__}."
            )
        self._context = context
        self._owner = forks.Owner()
        self._thread = futures.ThreadPoolExecutor(1, "tff_algos_async")

    @property
    def synchronous(self) -> tff.framework.SyncContext:
        """What runs the computations."""
        return self._context

    async def invoke(self, comp: Any, arg: Any) -> Any:
        """Runs a computation; as the synchronous context's `invoke`."""
        self._owner.check("The async context")
        loop = asyncio.get_running_loop()
        # Among the variables is the meter of `measured_communication`.
        run = contextvars.copy_context().run
        return await loop.run_in_executor(
            self._thread, run, self._context.invoke, comp, arg
        )
