"""What rounds with noise tell about a single client, as (epsilon, delta).

The server adds Gaussian noise to the sum of the cohort's clipped updates
(`tff.aggregators.DifferentiallyPrivateFactory`, or `tff.learning.dp_aggregator` with
`zeroing=False`: the norm by which it zeroes updates is learned without noise). The
accountant is dp-accounting's for Renyi differential privacy. How a round's clients are
sampled decides what it says:

* "poisson": every client takes part with probability q = S/N, independent of others. Two
  populations are adjacent if one has a client more (add-or-remove-one).
* "fixed": exactly S of N clients, without replacement. Two populations are adjacent if
  one client is another (replace-one). Exchanging a client moves a sum of updates of
  norm at most C by up to 2 C, so the accountant sees half of the noise multiplier.
  The accountant's bound for a sample of most clients is above the one for all of them,
  which holds for every sample as well: the smaller one counts.
"""

import contextlib
import functools
from typing import Annotated, Literal

import dp_accounting
import numpy as np
from absl import logging
from dp_accounting import rdp

from tff_algos import messages
from tff_algos.hyperparameters import (
    HyperparameterError,
    Interval,
    checked,
    hparam,
    record,
)

Sampling = Literal["fixed", "poisson"]

# Where the search for a noise multiplier begins and ends.
_LEAST_NOISE, _MOST_NOISE = 1e-2, 1e4


@record
class NoisyRounds:
    """Rounds whose sum of clipped updates gets Gaussian noise.

    Attributes:
      noise_multiplier: Standard deviation of the noise over the clipping norm; with
        adaptive clipping, of both of its mechanisms together.
      num_clients: All clients.
      clients_per_round: With "poisson", the expected number. At most N.
      sampling: How a round's clients are sampled.

    Raises:
      HyperparameterError: If an attribute is invalid.
    """

    noise_multiplier: Annotated[float, hparam(above=0, symbol="z")]
    num_clients: Annotated[int, hparam(low=1, symbol="N")]
    clients_per_round: Annotated[int, hparam(low=1, symbol="S")]
    sampling: Annotated[Sampling, hparam()] = "fixed"

    def __attrs_post_init__(self):
        if self.clients_per_round > self.num_clients:
            raise HyperparameterError(
                "clients_per_round",
                self.clients_per_round,
                f"an integer {Interval(1, self.num_clients)}",
            )

    @checked
    def epsilon(
        self,
        num_rounds: Annotated[int, hparam(low=0)],
        delta: Annotated[float, hparam(above=0, below=1)],
    ) -> float:
        """Returns epsilon after some rounds; 0 before the first.

        Args:
          num_rounds: The number of rounds.
          delta: The probability with which epsilon may be exceeded.

        Raises:
          HyperparameterError: If an argument is invalid.
        """
        if not num_rounds:
            return 0.0
        return min(
            self._epsilon_of(event, num_rounds, delta) for event in self._events()
        )

    def _epsilon_of(
        self, event: dp_accounting.DpEvent, num_rounds: int, delta: float
    ) -> float:
        orders, of_one_round = _renyi_curve(
            event, self._accountant().neighboring_relation
        )
        epsilon, _ = rdp.compute_epsilon(orders, num_rounds * of_one_round, delta)
        return float(epsilon)

    def _accountant(self) -> dp_accounting.PrivacyAccountant:
        relations = dp_accounting.NeighboringRelation
        by_sampling = {
            "fixed": relations.REPLACE_ONE,
            "poisson": relations.ADD_OR_REMOVE_ONE,
        }
        return rdp.RdpAccountant(neighboring_relation=by_sampling[self.sampling])

    def _events(self) -> list[dp_accounting.DpEvent]:
        """Returns a round, or several that each reveal at least as much."""
        if self.sampling == "poisson":
            noisy = dp_accounting.GaussianDpEvent(self.noise_multiplier)
            share = self.clients_per_round / self.num_clients
            return [dp_accounting.PoissonSampledDpEvent(share, noisy)]
        noisy = dp_accounting.GaussianDpEvent(self.noise_multiplier / 2)
        sampled = dp_accounting.SampledWithoutReplacementDpEvent(
            self.num_clients, self.clients_per_round, noisy
        )
        return [sampled, noisy]


@checked
def noise_multiplier_for(
    target_epsilon: Annotated[float, hparam(above=0)],
    delta: Annotated[float, hparam(above=0, below=1)],
    num_rounds: Annotated[int, hparam(low=1)],
    *,
    num_clients: int,
    clients_per_round: int,
    sampling: Sampling = "fixed",
) -> float:
    """Returns the least noise multiplier that keeps rounds within (epsilon, delta).

    Args:
      target_epsilon: The largest epsilon.
      delta: The probability with which it may be exceeded.
      num_rounds: All rounds.
      num_clients: As in `NoisyRounds`, and so is every argument not listed here.

    Raises:
      HyperparameterError: If an argument is invalid, or no noise multiplier in
        [0.01, 10,000] reaches `target_epsilon`.
    """

    def rounds(noise_multiplier: float) -> NoisyRounds:
        return NoisyRounds(
            noise_multiplier=noise_multiplier,
            num_clients=num_clients,
            clients_per_round=clients_per_round,
            sampling=sampling,
        )

    most = rounds(_MOST_NOISE)
    reaching = [
        index
        for index, event in enumerate(most._events())
        if most._epsilon_of(event, num_rounds, delta) <= target_epsilon
    ]
    if not reaching:
        raise HyperparameterError(
            "target_epsilon",
            target_epsilon,
            f"an epsilon that a noise multiplier of {_MOST_NOISE:g} reaches",
        )
    if rounds(_LEAST_NOISE).epsilon(num_rounds, delta) <= target_epsilon:
        return _LEAST_NOISE

    def calibrated(index: int) -> float:
        return dp_accounting.calibrate_dp_mechanism(
            most._accountant,
            lambda noise: dp_accounting.SelfComposedDpEvent(
                rounds(noise)._events()[index], num_rounds
            ),
            target_epsilon,
            delta,
            dp_accounting.ExplicitBracketInterval(_LEAST_NOISE, _MOST_NOISE),
            tol=1e-4,
        )

    with _without_warnings():
        return min(map(calibrated, reaching))


# It takes a fifth of a second, and a run asks after every round.
@functools.lru_cache(maxsize=64)
def _renyi_curve(
    event: dp_accounting.DpEvent, relation: dp_accounting.NeighboringRelation
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the accountant's orders and, for each, what one round reveals."""
    accountant = rdp.RdpAccountant(neighboring_relation=relation)
    with _without_warnings():
        accountant.compose(event)
    return accountant._orders, accountant._rdp


def _without_warnings() -> contextlib.AbstractContextManager[None]:
    """Suppresses the accountant's warnings of orders whose series do not converge.

    It leaves these orders out. The bound holds without them: every order gives one.
    """
    return messages.not_logged("failed to converge", logging.get_absl_logger())
