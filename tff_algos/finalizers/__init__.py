"""Server updates: finalizers, and what a server does besides."""

from tff_algos.finalizers.apply_optimizer import build_apply_optimizer_finalizer
from tff_algos.finalizers.average_iterates import (
    AverageState,
    build_average_iterates_finalizer,
)
from tff_algos.finalizers.meta_update import MetaUpdate, build_meta_update

__all__ = [
    "AverageState",
    "MetaUpdate",
    "build_apply_optimizer_finalizer",
    "build_average_iterates_finalizer",
    "build_meta_update",
]
