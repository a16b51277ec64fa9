"""Runtimes of TFF computations."""

from tff_algos.execution.native import (
    NativeContext,
    NativeContextClosedError,
    native_context,
    set_native_context,
)
from tff_algos.execution.worker import (
    NativeRuntimeError,
    WorkerDiedError,
    WorkerStartError,
)

__all__ = [
    "NativeContext",
    "NativeContextClosedError",
    "NativeRuntimeError",
    "WorkerDiedError",
    "WorkerStartError",
    "native_context",
    "set_native_context",
]
