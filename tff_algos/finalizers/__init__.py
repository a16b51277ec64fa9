"""Server updates: `tff.learning.templates.FinalizerProcess`es."""

from tff_algos.finalizers.apply_optimizer import build_apply_optimizer_finalizer

__all__ = ["build_apply_optimizer_finalizer"]
