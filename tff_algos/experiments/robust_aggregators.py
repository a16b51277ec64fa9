"""Robust aggregation by flag: `--aggregator=NAME[:VALUE]`."""

import math
from collections.abc import Callable

import tensorflow_federated as tff

from tff_algos import aggregators
from tff_algos.hyperparameters import Form, HyperparameterError

_CHOICES = (
    "median, trimmed_mean:SHARE with a share in [0, 0.5), geometric_median, krum:F with F "
    "malicious clients, clip or zeroing"
)


_Weighted = tff.aggregators.WeightedAggregationFactory


def _clip(mean: _Weighted) -> _Weighted:
    # As `tff.learning.robust_aggregator` does, whose mean cannot be chosen.
    norm = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(
        initial_estimate=1.0, target_quantile=0.8, learning_rate=0.2
    )
    return tff.aggregators.clipping_factory(norm, mean)


def _zero(mean: _Weighted) -> _Weighted:
    norm = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(
        initial_estimate=10.0,
        target_quantile=0.98,
        learning_rate=math.log(10.0),
        multiplier=2.0,
        increment=1.0,
    )
    return tff.aggregators.zeroing_factory(norm, mean)


# What clips or zeroes updates that are long beside those of earlier rounds.
_AROUND_MEAN: dict[str, Callable[[_Weighted], _Weighted]] = {
    "clip": _clip,
    "zeroing": _zero,
}
_WITHOUT_VALUE: dict[str, Callable[[], _Weighted]] = {
    "median": aggregators.MedianFactory,
    "geometric_median": aggregators.GeometricMedianFactory,
}
_WITH_VALUE = {
    "trimmed_mean": lambda value: aggregators.TrimmedMeanFactory(float(value)),
    "krum": lambda value: aggregators.KrumFactory(int(value)),
}
FORM = Form(
    f"{'|'.join((*_AROUND_MEAN, *_WITHOUT_VALUE))}|trimmed_mean:[0-9.eE+-]+|krum:[0-9]+",
    f"one of {_CHOICES}",
)


def build(
    text: str | None,
    sum_factory: tff.aggregators.UnweightedAggregationFactory | None = None,
) -> _Weighted | None:
    """Returns the aggregator that a flag's value names; None for the weighted mean.

    Args:
      text: The flag's value, or None.
      sum_factory: The sum in the mean, if it is not the plain one; of no use to rules
        that look at every single update.

    Raises:
      HyperparameterError: If the value names none.
    """
    mean = aggregators.MeanFactory(sum_factory)
    if text is None:
        return None if sum_factory is None else mean
    name, colon, value = str(text).partition(":")
    try:
        if name in _AROUND_MEAN and not colon:
            return _AROUND_MEAN[name](mean)
        if colon:
            return _WITH_VALUE[name](value)
        return _WITHOUT_VALUE[name]()
    except (KeyError, ValueError) as error:
        raise HyperparameterError("aggregator", text, f"one of {_CHOICES}") from error


def check(text: str | None, clients_per_round: int) -> None:
    """Checks that an algorithm's rounds can use the aggregator.

    Args:
      text: The flag's value, of which `build` has made an aggregator, or None.
      clients_per_round: The number of clients in a round.

    Raises:
      HyperparameterError: If they cannot.
    """
    name, _, value = (text or "").partition(":")
    if name == "trimmed_mean" and 0 < float(value) * clients_per_round < 1 - 1e-12:
        raise HyperparameterError(
            "aggregator",
            text,
            f"trimmed_mean:S with S of at least {-(-1000 // clients_per_round) / 1000:g} "
            f"for --clients_per_round={clients_per_round}: less leaves nobody out"
            if clients_per_round > 2
            else f"at least 3 clients per round, found {clients_per_round}",
        )
    if name == "krum" and clients_per_round < 2 * int(value) + 3:
        most = (clients_per_round - 3) // 2
        raise HyperparameterError(
            "aggregator",
            text,
            f"krum:F with F of at most {most} for --clients_per_round="
            f"{clients_per_round}: it needs 2 F + 3 clients"
            if most >= 0
            else f"at least 3 clients per round, found {clients_per_round}",
        )
