"""Aggregation factories that work with any TFF code."""

from tff_algos.aggregators.compressed import TopKSumFactory, build_quantized_sum
from tff_algos.aggregators.exclude_non_finite import ExcludeNonFiniteFactory
from tff_algos.aggregators.gather import GatherFactory, build_gather_computation
from tff_algos.aggregators.latest_updates import (
    LatestUpdatesFactory,
    LatestUpdatesState,
)
from tff_algos.aggregators.mean import MeanFactory
from tff_algos.aggregators.mean_and_rows import MeanAndRowsFactory
from tff_algos.aggregators.mean_statistics import StatisticsFactory
from tff_algos.aggregators.min_norm_factory import MinNormFactory
from tff_algos.aggregators.normalized_mean import NormalizedMeanFactory
from tff_algos.aggregators.part import PartFactory
from tff_algos.aggregators.q_fair import QFairFactory
from tff_algos.aggregators.robust import (
    GeometricMedianFactory,
    KrumFactory,
    MedianFactory,
    TrimmedMeanFactory,
)
from tff_algos.aggregators.total_weight import TotalWeightFactory

__all__ = [
    "ExcludeNonFiniteFactory",
    "GatherFactory",
    "GeometricMedianFactory",
    "KrumFactory",
    "LatestUpdatesFactory",
    "LatestUpdatesState",
    "MeanAndRowsFactory",
    "MeanFactory",
    "MedianFactory",
    "MinNormFactory",
    "NormalizedMeanFactory",
    "PartFactory",
    "QFairFactory",
    "StatisticsFactory",
    "TopKSumFactory",
    "TotalWeightFactory",
    "TrimmedMeanFactory",
    "build_gather_computation",
    "build_quantized_sum",
]
