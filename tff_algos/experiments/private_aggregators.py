"""Differential privacy by flag: the aggregator of `--dp=central`, and its noise."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import attrs
import tensorflow_federated as tff

from tff_algos import privacy
from tff_algos.hyperparameters import (
    Form,
    HyperparameterError,
    UnusableHyperparameterError,
)
from tff_algos.privacy import NoisyRounds

ADAPTIVE = "adaptive"
DELTA = 1e-5
_CLIP_NORMS = "a number > 0 or adaptive"
CLIP_FORM = Form(rf"{ADAPTIVE}|.*\d.*", _CLIP_NORMS)
_NOISE = ("dp_noise_multiplier", "dp_target_epsilon")
# What says nothing without --dp, and its defaults.
_OF_DP = {**dict.fromkeys(_NOISE), "dp_clip": ADAPTIVE, "dp_delta": DELTA}


@attrs.frozen
class Guarantee:
    """What a run says about its privacy.

    Attributes:
      rounds: The noise and the sampling of its rounds.
      delta: The delta of (epsilon, delta).
    """

    rounds: NoisyRounds
    delta: float

    def epsilon(self, num_rounds: int) -> float:
        """Returns epsilon after some rounds."""
        return self.rounds.epsilon(num_rounds, self.delta)


def clip_norm(text: str) -> float | None:
    """Returns the clipping norm that a flag's value names; None for an adaptive one.

    Raises:
      HyperparameterError: If it is neither a positive number nor "adaptive".
    """
    if text == ADAPTIVE:
        return None
    try:
        norm = float(text)
    except ValueError:
        norm = math.nan
    if not 0 < norm < math.inf:
        raise HyperparameterError("dp_clip", text, _CLIP_NORMS)
    return norm


def check(settings: Mapping[str, Any]) -> None:
    """Checks settings of privacy against each other.

    Args:
      settings: All settings of a run.

    Raises:
      HyperparameterError: If they do not go together.
    """
    if settings["dp"] is None:
        for name, default in _OF_DP.items():
            if settings[name] != default:
                raise UnusableHyperparameterError(name, settings[name], "without --dp")
        return
    if settings.get("aggregator"):
        raise UnusableHyperparameterError(
            "aggregator",
            settings["aggregator"],
            "with --dp: privacy needs a sum of all updates",
        )
    if all(settings[name] is None for name in _NOISE):
        raise HyperparameterError(
            "dp", settings["dp"], "--dp_noise_multiplier or --dp_target_epsilon with it"
        )


def guarantee(settings: Mapping[str, Any], num_clients: int) -> Guarantee | None:
    """Returns the guarantee of a run's settings; None without --dp.

    Raises:
      HyperparameterError: If no noise reaches the epsilon asked for, or there are fewer
        clients than a round needs.
    """
    if settings.get("dp") is None:
        return None
    if settings["clients_per_round"] > num_clients:
        raise HyperparameterError(
            "clients_per_round",
            settings["clients_per_round"],
            f"at most {num_clients}, the clients that train",
        )
    sampled = {
        "num_clients": num_clients,
        "clients_per_round": settings["clients_per_round"],
        "sampling": settings["sampling"],
    }
    noise = settings["dp_noise_multiplier"]
    if noise is None:
        target = settings["dp_target_epsilon"]
        rounds = max(settings["total_rounds"], 1)
        try:
            noise = _noise(target, settings["dp_delta"], rounds, **sampled)
        except ValueError as error:
            raise HyperparameterError(
                "dp_target_epsilon", target, "an epsilon that noise can reach"
            ) from error
    return Guarantee(
        NoisyRounds(noise_multiplier=noise, **sampled), settings["dp_delta"]
    )


# Calibrating takes seconds, and a run asks for it where it builds and where it reports.
_noise = functools.lru_cache(maxsize=64)(privacy.noise_multiplier_for)


def build(found: Guarantee, clip: str) -> tff.aggregators.WeightedAggregationFactory:
    """Returns the aggregator: clipped updates, summed, with noise, over S.

    Clients' weights are ignored. The sum is divided by the number of clients per round,
    or by what it is expected to be.

    Args:
      found: The noise and the cohort's size.
      clip: As in `clip_norm`.
    """
    rounds, norm = found.rounds, clip_norm(clip)
    factory = tff.aggregators.DifferentiallyPrivateFactory
    arguments = (rounds.noise_multiplier, float(rounds.clients_per_round))
    if norm is None:
        # TFF's deviation of the noise on the number of clipped clients, a twentieth of
        # the cohort, cannot be private enough in a small one. TFF adds the more noise to
        # updates, so that both together have the noise multiplier.
        deviation = max(0.05 * rounds.clients_per_round, rounds.noise_multiplier)
        private = factory.gaussian_adaptive(*arguments, clipped_count_stddev=deviation)
    else:
        private = factory.gaussian_fixed(*arguments, norm)
    return tff.aggregators.as_weighted_aggregator(private)
