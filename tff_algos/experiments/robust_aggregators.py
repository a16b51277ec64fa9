"""Robust aggregation by flag: `--aggregator=NAME[:VALUE]`."""

from collections.abc import Callable

import tensorflow_federated as tff

from tff_algos import aggregators
from tff_algos.hyperparameters import HyperparameterError

_CHOICES = (
    "median, trimmed_mean:SHARE with a share in [0, 0.5), geometric_median, krum:F with F "
    "malicious clients, clip or zeroing"
)


def _robust(**kwargs: bool) -> tff.aggregators.WeightedAggregationFactory:
    # Clips or zeroes updates that are long beside those of earlier rounds.
    return tff.learning.robust_aggregator(**kwargs)


_WITHOUT_VALUE: dict[str, Callable[[], tff.aggregators.WeightedAggregationFactory]] = {
    "median": aggregators.MedianFactory,
    "geometric_median": aggregators.GeometricMedianFactory,
    "clip": lambda: _robust(zeroing=False, clipping=True),
    "zeroing": lambda: _robust(zeroing=True, clipping=False),
}
_WITH_VALUE = {
    "trimmed_mean": lambda value: aggregators.TrimmedMeanFactory(float(value)),
    "krum": lambda value: aggregators.KrumFactory(int(value)),
}


def build(text: str | None) -> tff.aggregators.WeightedAggregationFactory | None:
    """Returns the aggregator that a flag's value names; None for the weighted mean.

    Raises:
      HyperparameterError: If the value names none.
    """
    if text is None:
        return None
    name, colon, value = text.partition(":")
    try:
        if colon:
            return _WITH_VALUE[name](value)
        return _WITHOUT_VALUE[name]()
    except (KeyError, ValueError) as error:
        raise HyperparameterError("aggregator", text, f"one of {_CHOICES}") from error


def check(text: str | None, clients_per_round: int, obstacle: str = "") -> None:
    """Checks that an algorithm and its rounds can use the aggregator.

    Args:
      text: The flag's value, of which `build` has made an aggregator, or None.
      clients_per_round: The number of clients in a round.
      obstacle: The algorithm and why it has no aggregator to replace, or nothing.

    Raises:
      HyperparameterError: If they cannot.
    """
    if text is not None and obstacle:
        raise HyperparameterError("aggregator", text, f"nothing for {obstacle}")
    name, _, value = (text or "").partition(":")
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
