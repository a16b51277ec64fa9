"""Statistics of measurements: pure functions."""

import math
import statistics
from collections.abc import Mapping, Sequence

import attrs
import numpy as np


@attrs.frozen
class Spread:
    """A median with the minimum and the maximum."""

    median: float
    low: float
    high: float


@attrs.frozen
class Measurement:
    """One process of an engine on one workload.

    Attributes:
      repetition: The index of the repetition. Its measurements ran one after the other,
        so a slowdown of the machine affects all of them.
      round_seconds: Seconds of every round; the first includes tracing and compiling.
      round_cpu_seconds: CPU seconds of every round, of all cores and processes.
      start_up_seconds: From the start of the process to the end of round 1.
      peak_megabytes: Peak memory of the process and its children.
      other_cores: Number of cores kept busy by other processes.
      onednn: The value of TF_ENABLE_ONEDNN_OPTS in the engine's process, "unset" for
        TensorFlow's default; None for engines without TensorFlow.
    """

    repetition: int
    round_seconds: tuple[float, ...]
    round_cpu_seconds: tuple[float, ...]
    start_up_seconds: float
    peak_megabytes: float
    other_cores: float = 0.0
    onednn: str | None = None

    @property
    def median_seconds(self) -> float:
        """The median seconds of a round, excluding the first."""
        return statistics.median(self.round_seconds[1:])

    @property
    def mean_cpu_seconds(self) -> float:
        """The mean CPU seconds of a round, excluding the first.

        Not the median, because children's time is known to a hundredth of a second.
        """
        return statistics.fmean(self.round_cpu_seconds[1:])


@attrs.frozen
class Summary:
    """The summary of an engine's measurements on a workload, in seconds and MB."""

    seconds_per_round: Spread
    cpu_seconds_per_round: float
    start_up_seconds: float
    first_round_seconds: float
    peak_megabytes: float


def spread(values: Sequence[float]) -> Spread:
    """Returns median, minimum and maximum.

    Raises:
      ValueError: If there are no values.
    """
    if not values:
        raise ValueError("Expected at least one value, found none.")
    return Spread(statistics.median(values), min(values), max(values))


def seconds_per_round(measurements: Sequence[Measurement]) -> Spread:
    """Returns the spread over repetitions or, if there is only one, over its rounds."""
    if len(measurements) == 1:
        return spread(measurements[0].round_seconds[1:])
    return spread([m.median_seconds for m in measurements])


def summarize(measurements: Sequence[Measurement]) -> Summary:
    """Returns medians over repetitions, and the maximum of the memory."""
    return Summary(
        seconds_per_round=seconds_per_round(measurements),
        cpu_seconds_per_round=statistics.median(
            m.mean_cpu_seconds for m in measurements
        ),
        start_up_seconds=statistics.median(m.start_up_seconds for m in measurements),
        first_round_seconds=statistics.median(m.round_seconds[0] for m in measurements),
        peak_megabytes=max(m.peak_megabytes for m in measurements),
    )


def speed(
    measurements: Sequence[Measurement], reference: Sequence[Measurement]
) -> Spread:
    """Returns how many times as fast as the reference the first measurements are.

    Repetitions are compared pairwise. For a single pair, the extremes compare the
    slowest rounds of one with the fastest rounds of the other.
    """
    by_repetition = {m.repetition: m.median_seconds for m in reference}
    ratios = [
        by_repetition[m.repetition] / m.median_seconds
        for m in measurements
        if m.repetition in by_repetition
    ]
    if len(ratios) != 1:
        return spread(ratios)
    own, other = seconds_per_round(measurements), seconds_per_round(reference)
    return Spread(ratios[0], other.low / own.high, other.high / own.low)


def break_even_rounds(
    start_up: float, seconds: float, other_start_up: float, other_seconds: float
) -> float:
    """Returns the round from which on the first engine stays ahead of the other.

    Args:
      start_up: Seconds from its start to the end of its first round.
      seconds: Seconds of each later round.
      other_start_up: `start_up` of the other engine.
      other_seconds: `seconds` of the other engine.

    Returns:
      An integer of at least 1; infinity if the first engine never gets ahead for good.
    """
    gap = start_up - other_start_up
    if gap <= 0 and seconds <= other_seconds:
        return 1.0
    if seconds >= other_seconds:
        return math.inf
    return 1.0 + max(0, math.ceil(gap / (other_seconds - seconds)))


def fastest(summaries: Mapping[str, Summary], names: Sequence[str]) -> str | None:
    """Returns the name with the lowest median, `None` if none was measured."""
    measured = [name for name in names if name in summaries]
    return min(
        measured, key=lambda n: summaries[n].seconds_per_round.median, default=None
    )


def relative_difference(
    weights: Sequence[np.ndarray],
    reference: Sequence[np.ndarray],
    initial: Sequence[np.ndarray],
) -> float:
    """Returns |w - r| / |r - i|, Euclidean norms over all weights.

    It compares the changes by training, not the weights, which would agree even if
    nothing had been learned.

    Raises:
      ValueError: If the shapes differ.
    """
    error = change = 0.0
    for own, other, first in zip(weights, reference, initial, strict=True):
        if not own.shape == other.shape == first.shape:
            raise ValueError(
                f"Expected weights of shape {first.shape}, found {own.shape} and "
                f"{other.shape}."
            )
        error += float(np.sum(np.square(own - other, dtype=np.float64)))
        change += float(np.sum(np.square(other - first, dtype=np.float64)))
    return math.sqrt(error / change) if change else math.inf


def next_to_repeat(
    seconds_of: Mapping[str, float],
    done: Mapping[str, int],
    budget: float,
    max_repetitions: int,
) -> str | None:
    """Returns the workload to repeat next, `None` if there is no time for any.

    This is the workload with the fewest repetitions (ties: the shortest).

    Args:
      seconds_of: Duration of one repetition of each workload.
      done: Number of repetitions of each workload so far.
      budget: Seconds left.
      max_repetitions: Limit per workload.
    """
    fitting = [
        name
        for name, seconds in seconds_of.items()
        if seconds <= budget and done[name] < max_repetitions
    ]
    return min(fitting, key=lambda n: (done[n], seconds_of[n]), default=None)
