"""Epsilon: published values, the exact one of a single round, noise for a target."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from absl import logging

from tff_algos import privacy
from tff_algos.privacy import NoisyRounds

ROUNDS = {"num_clients": 1000, "clients_per_round": 10}


def test_it_is_within_the_published_bound_of_the_moments_accountant():
    """Abadi et al., 2016: q = 0.01, sigma = 4, 10,000 steps: (1.26, 1e-5).

    Newer conversions to epsilon are tighter: dp-accounting's gives 1.035.
    """
    rounds = NoisyRounds(noise_multiplier=4.0, **ROUNDS, sampling="poisson")
    assert rounds.epsilon(10_000, 1e-5) == pytest.approx(1.035, abs=2e-3)


def _exact_epsilon(sigma, delta):
    """Balle and Wang, 2018: of one Gaussian mechanism of sensitivity 1."""

    def excess(epsilon):
        a, b = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
        normal = scipy.stats.norm.cdf
        return normal(a) - np.exp(epsilon) * normal(b) - delta

    return scipy.optimize.brentq(excess, 1e-6, 50)


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_of_everybody_in_one_round_it_is_just_above_the_exact_one(sampling):
    """Exchanging a client moves the sum twice as far as adding one."""
    rounds = NoisyRounds(
        noise_multiplier=4.0, num_clients=7, clients_per_round=7, sampling=sampling
    )
    sensitivity = 2 if sampling == "fixed" else 1
    exact = _exact_epsilon(4.0 / sensitivity, 1e-5)
    assert exact <= rounds.epsilon(1, 1e-5) <= 1.25 * exact


def test_it_grows_with_rounds_and_falls_with_noise():
    few = NoisyRounds(noise_multiplier=1.0, **ROUNDS)
    noisier = NoisyRounds(noise_multiplier=2.0, **ROUNDS)
    assert few.epsilon(0, 1e-5) == 0
    assert 0 < noisier.epsilon(10, 1e-5) < few.epsilon(10, 1e-5)
    assert few.epsilon(10, 1e-5) < few.epsilon(100, 1e-5)


@pytest.mark.parametrize("size", [50, 60, 80, 99])
def test_a_sample_reveals_no_more_than_all_clients(size):
    """The accountant's own bound says otherwise for samples of most clients."""

    def sampled(clients_per_round):
        return {"num_clients": 100, "clients_per_round": clients_per_round}

    rounds = NoisyRounds(noise_multiplier=2.0, **sampled(size))
    everybody = NoisyRounds(noise_multiplier=2.0, **sampled(100))
    assert rounds.epsilon(10, 1e-5) <= everybody.epsilon(10, 1e-5)
    noise = privacy.noise_multiplier_for(8.0, 1e-5, 10, **sampled(size))
    enough = privacy.noise_multiplier_for(8.0, 1e-5, 10, **sampled(100))
    assert noise <= enough + 1e-4
    found = NoisyRounds(noise_multiplier=noise, **sampled(size))
    assert found.epsilon(10, 1e-5) == pytest.approx(8.0, rel=1e-3)


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_the_noise_for_a_target_reaches_it(sampling):
    noise = privacy.noise_multiplier_for(8.0, 1e-5, 100, **ROUNDS, sampling=sampling)
    found = NoisyRounds(noise_multiplier=noise, **ROUNDS, sampling=sampling)
    assert found.epsilon(100, 1e-5) == pytest.approx(8.0, rel=1e-2)
    assert found.epsilon(100, 1e-5) <= 8.0 + 1e-6


def test_the_accountant_is_quiet_about_orders_that_it_leaves_out(caplog):
    """Its series of small fractional orders do not converge for these rates."""
    sampled = {"num_clients": 90, "clients_per_round": 20, "sampling": "poisson"}
    assert NoisyRounds(noise_multiplier=1.0, **sampled).epsilon(30, 1e-5) > 1
    privacy.noise_multiplier_for(8.0, 1e-5, 30, **sampled)
    assert not caplog.records
    logging.warning("Others stay.")
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier=0.0 .*: expected a number > 0"),
        ({"clients_per_round": 1001}, r"clients_per_round=1001 .* in \[1, 1000\]"),
        ({"sampling": "shuffled"}, "sampling='shuffled' .*: expected one of fixed"),
    ],
)
def test_rounds_that_cannot_be_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        NoisyRounds(**{"noise_multiplier": 1.0, **ROUNDS, **bad})


@pytest.mark.parametrize("delta", [0.0, 1.0, 1e5, -1e-5, float("nan")])
def test_a_delta_that_is_no_probability_is_refused(delta):
    rounds = NoisyRounds(noise_multiplier=1.0, **ROUNDS)
    with pytest.raises(ValueError, match=r"delta=.*: expected a number in \(0, 1\)"):
        rounds.epsilon(100, delta)
    with pytest.raises(ValueError, match=r"delta=.*: expected a number in \(0, 1\)"):
        privacy.noise_multiplier_for(8.0, delta, 100, **ROUNDS)


@pytest.mark.parametrize("target", [-1.0, float("nan"), 1e-9])
def test_an_epsilon_out_of_reach_is_refused_by_name(target):
    with pytest.raises(ValueError, match="target_epsilon=.*: expected"):
        privacy.noise_multiplier_for(target, 1e-5, 100, **ROUNDS)


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize("num_rounds", [1, 7, 1000])
def test_it_is_the_accountants(sampling, num_rounds):
    """Whose curve of one round is kept, and multiplied."""
    rounds = NoisyRounds(noise_multiplier=1.5, **ROUNDS, sampling=sampling)
    found = []
    for event in rounds._events():
        accountant = rounds._accountant()
        accountant.compose(event, num_rounds)
        found.append(accountant.get_epsilon(1e-5))
    assert rounds.epsilon(num_rounds, 1e-5) == pytest.approx(min(found), rel=1e-12)
