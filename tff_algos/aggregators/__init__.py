"""Aggregation factories that drop into any TFF code."""

from tff_algos.aggregators.exclude_non_finite import ExcludeNonFiniteFactory

__all__ = ["ExcludeNonFiniteFactory"]
