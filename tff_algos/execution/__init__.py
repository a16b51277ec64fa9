"""Runtimes for TFF computations."""

from tff_algos.execution.array_dataset import (
    ArrayDataset,
    ElementDataset,
    RecipeDataset,
)
from tff_algos.execution.async_context import AsyncContext
from tff_algos.execution.client_passes import ClientError
from tff_algos.execution.communication import (
    Communication,
    measured_communication,
)
from tff_algos.execution.dataflow import UnsupportedComputationError
from tff_algos.execution.devices import UnknownDeviceError
from tff_algos.execution.distributed.cluster import ClusterError
from tff_algos.execution.distributed.ray_context import (
    RayContext,
    ray_context,
    set_ray_context,
    total_traffic,
)
from tff_algos.execution.distributed.schedule import WorkerLostError
from tff_algos.execution.distributed.values import CannotTravelError
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
    "AsyncContext",
    "CannotTravelError",
    "ClientError",
    "ClusterError",
    "Communication",
    "ElementDataset",
    "InProcessContext",
    "NativeContext",
    "NativeContextClosedError",
    "NativeRuntimeError",
    "RayContext",
    "RecipeDataset",
    "UnknownDeviceError",
    "UnsupportedComputationError",
    "WorkerDiedError",
    "WorkerLostError",
    "WorkerStartError",
    "explain",
    "in_process_context",
    "measured_communication",
    "native_context",
    "ray_context",
    "set_in_process_context",
    "set_native_context",
    "set_ray_context",
    "total_traffic",
]
