"""Server updates: finalizers and a server's additional steps."""

from tff_algos.finalizers.apply_optimizer import build_apply_optimizer_finalizer
from tff_algos.finalizers.average_iterates import (
    AverageState,
    build_average_iterates_finalizer,
)
from tff_algos.finalizers.dynamic_regularization import (
    build_dynamic_regularization_finalizer,
)
from tff_algos.finalizers.gradient_memory import (
    GradientMemory,
    GradientMemoryState,
    build_gradient_memory_finalizer,
)
from tff_algos.finalizers.meta_update import MetaUpdate, build_meta_update
from tff_algos.finalizers.replace_statistics import build_statistics_finalizer

__all__ = [
    "AverageState",
    "GradientMemory",
    "GradientMemoryState",
    "MetaUpdate",
    "build_apply_optimizer_finalizer",
    "build_average_iterates_finalizer",
    "build_dynamic_regularization_finalizer",
    "build_gradient_memory_finalizer",
    "build_meta_update",
    "build_statistics_finalizer",
]
