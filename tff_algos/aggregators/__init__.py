"""Aggregation factories that drop into any TFF code."""

from tff_algos.aggregators.exclude_non_finite import ExcludeNonFiniteFactory
from tff_algos.aggregators.gather import GatherFactory, build_gather_computation
from tff_algos.aggregators.min_norm import MinNormFactory
from tff_algos.aggregators.normalized_mean import NormalizedMeanFactory
from tff_algos.aggregators.q_fair import QFairFactory

__all__ = [
    "ExcludeNonFiniteFactory",
    "GatherFactory",
    "MinNormFactory",
    "NormalizedMeanFactory",
    "QFairFactory",
    "build_gather_computation",
]
