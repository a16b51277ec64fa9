"""Arguments that stand for data: `tff.framework.DataDescriptor` and its like.

TFF's runtimes let such an object ingest itself in an executor, usually by a computation
that maps handles, such as clients' ids, to datasets.
"""

import asyncio
from concurrent import futures
from typing import Any

import attrs
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2
from tensorflow_federated.python.core.impl.executors import ingestable_base

Ingestable = ingestable_base.Ingestable


def values_of(data: Ingestable, context: tff.framework.SyncContext) -> Any:
    """Returns the values that `data` stands for.

    Args:
      data: The data.
      context: Runs its computations.

    Raises:
      TypeError: If the data are named by URIs.
    """
    # A thread of its own, because this one may run an event loop, as notebooks' do.
    with futures.ThreadPoolExecutor(max_workers=1) as executor:
        recorded = executor.submit(asyncio.run, data.ingest(_Recorder())).result()
    # In a program, this thread is not the one that has a context.
    with tff.framework.get_context_stack().install(context):
        return _called(recorded)


@attrs.frozen(eq=False)
class _Call:
    """A call of a computation that is still to be made."""

    computation: Any
    argument: Any


class _Recorder:
    """Stands for an executor: keeps values as they are, and calls for later."""

    async def create_value(self, value: Any, type_spec: Any = None) -> Any:
        del type_spec
        if isinstance(value, Ingestable):
            return await value.ingest(self)
        # Nothing else is looked into: datasets may yield their elements only once.
        listed = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(each, computation_pb2.Computation) for each in listed):
            raise TypeError(
                "Expected data or handles of data, found URIs, which need a data backend; "
                "TFF 0.87 has none in Python."
            )
        return value

    async def create_call(self, computation: Any, argument: Any = None) -> _Call:
        return _Call(computation, argument)


def _called(recorded: Any) -> Any:
    if not isinstance(recorded, _Call):
        return recorded
    if recorded.computation.type_signature.parameter is None:
        return recorded.computation()
    return recorded.computation(_called(recorded.argument))
