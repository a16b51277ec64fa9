"""Runtimes for TFF computations."""

from tff_algos.execution.array_dataset import ArrayDataset, ElementDataset
from tff_algos.execution.client_passes import ClientError
from tff_algos.execution.dataflow import UnsupportedComputationError
from tff_algos.execution.devices import UnknownDeviceError
from tff_algos.execution.in_process import (
    InProcessContext,
    explain,
    in_process_context,
    set_in_process_context,
)
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
    "ArrayDataset",
    "ClientError",
    "ElementDataset",
    "InProcessContext",
    "NativeContext",
    "NativeContextClosedError",
    "NativeRuntimeError",
    "UnknownDeviceError",
    "UnsupportedComputationError",
    "WorkerDiedError",
    "WorkerStartError",
    "explain",
    "in_process_context",
    "native_context",
    "set_in_process_context",
    "set_native_context",
]
