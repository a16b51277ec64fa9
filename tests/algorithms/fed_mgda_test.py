"""FedMGDA, FedMGDA+, MGDA-Prox and FedAvg-N: NumPy's rounds, exact identities."""

import numpy as np
import pytest
import scipy.optimize
import tensorflow_federated as tff

import tff_algos
from tests.testing import fair_processes, fair_rounds, problems
from tests.testing.fair_processes import RATE, after, assert_differ, one_step_each
from tests.testing.fair_rounds import SERVER_RATE, SIZES, build, delta_of

NUM_EXAMPLES = tff.learning.ClientWeighting.NUM_EXAMPLES
START = problems.initial_vector()
UNIFORM_BASE = np.full(4, 1 / 4)


def least_norm_weights(rows, base, epsilon=1.0, cap=1.0):
    """Weights within the box around `base` whose combination of rows is shortest."""
    gram = rows @ rows.T
    solution = scipy.optimize.minimize(
        lambda weights: weights @ gram @ weights / 2,
        base,
        jac=lambda weights: gram @ weights,
        method="SLSQP",
        bounds=[(max(0, b - epsilon), min(cap, b + epsilon)) for b in base],
        constraints={
            "type": "eq",
            "fun": lambda weights: weights.sum() - 1,
            "jac": np.ones_like,
        },
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    assert solution.success, solution.message
    return solution.x


def fed_mgda_rounds(
    num_rounds, base, normalize=False, median_norm_lr=False, strength=0.0, **box
):
    """The weights after some rounds, and the last ones of the clients."""
    w = START
    for _ in range(num_rounds):
        deltas = np.array(
            [
                delta_of(c, w, lambda y, w=w: strength * (y - w))
                for c in fair_rounds.CLIENTS
            ]
        )
        norms = np.linalg.norm(deltas, axis=1)
        if normalize:
            deltas /= norms[:, np.newaxis]
        weights = least_norm_weights(deltas, base, **box)
        length = np.median(norms) if median_norm_lr else 1.0
        w = w - SERVER_RATE * length * weights @ deltas
    return w, weights


def assert_is_fed_mgda(process, *args, **kwargs):
    found, output = problems.run(process, fair_rounds.cohort(), fair_rounds.cohort())
    expected, weights = fed_mgda_rounds(2, *args, **kwargs)
    fair_rounds.assert_close(found, expected)
    measured = output.metrics["aggregator"]
    assert measured["lambda_min"] == pytest.approx(weights.min(), abs=1e-5)
    assert measured["lambda_max"] == pytest.approx(weights.max(), abs=1e-5)
    assert measured["qp_fallbacks"] == 0
    # Neither all alike nor one alone: the box and the norm both had a say.
    assert 0.3 < weights.max() < 0.95


def test_fedmgda_takes_the_shortest_combination_of_updates():
    assert_is_fed_mgda(build(tff_algos.build_fed_mgda), UNIFORM_BASE)


def test_fedmgda_stays_in_a_box_around_the_share_of_the_examples():
    process = build(
        tff_algos.build_fed_mgda, epsilon=0.15, client_weighting=NUM_EXAMPLES
    )
    assert_is_fed_mgda(process, SIZES / SIZES.sum(), epsilon=0.15)


def test_fedmgda_plus_gives_no_client_more_than_the_cap():
    process = build(tff_algos.build_fed_mgda_plus, cap=0.32)
    assert_is_fed_mgda(process, UNIFORM_BASE, normalize=True, cap=0.32)


def test_fedmgda_pluss_step_may_be_as_long_as_the_median_update():
    process = build(tff_algos.build_fed_mgda_plus, median_norm_lr=True)
    assert_is_fed_mgda(process, UNIFORM_BASE, normalize=True, median_norm_lr=True)


def test_mgda_prox_combines_directions_of_proximal_training():
    process = build(tff_algos.build_mgda_prox, proximal_strength=0.7, epsilon=0.2)
    assert_is_fed_mgda(process, UNIFORM_BASE, normalize=True, strength=0.7, epsilon=0.2)


def test_fedavg_n_steps_along_the_mean_direction():
    process = build(tff_algos.build_fed_avg_n, client_weighting=NUM_EXAMPLES)
    found, _ = problems.run(process, fair_rounds.cohort(), fair_rounds.cohort())
    expected = START
    for _ in range(2):
        deltas = [delta_of(client, expected) for client in fair_rounds.CLIENTS]
        directions = [delta / np.linalg.norm(delta) for delta in deltas]
        expected = expected - SERVER_RATE * problems.mean(directions, SIZES)
    fair_rounds.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_fedmgda_without_a_box_is_fedavg_of_the_same_weights():
    data = fair_processes.cohort()
    fed_mgda = fair_processes.process(
        "fedmgda", epsilon=0.0, client_weighting=NUM_EXAMPLES
    )
    fedavg = after(fair_processes.process("fedavg"), data, data)
    fair_processes.assert_close(after(fed_mgda, data, data), fedavg)
    assert_differ(after(fair_processes.process("fedmgda"), data, data), fedavg)


@pytest.mark.parametrize("who_normalizes", [{}, {"normalize_at": "clients"}])
def test_fedmgda_plus_without_a_box_is_fedavg_n(who_normalizes):
    data = fair_processes.cohort()
    plus = after(fair_processes.process("fedmgda_plus", epsilon=0.0), data, data)
    fedavg_n = fair_processes.process("fedavg_n", **who_normalizes)
    fair_processes.assert_close(plus, after(fedavg_n, data, data))
    assert_differ(plus, after(fair_processes.process("fedmgda_plus"), data, data))


@pytest.mark.parametrize("box", [{}, {"epsilon": 0.1}])
def test_fedmgda_plus_of_two_clients_is_fedavg_n_whatever_the_box(box):
    data = fair_processes.cohort(fair_processes.CLIENTS[:2])
    plus = fair_processes.process("fedmgda_plus", **box)
    fair_processes.assert_close(
        after(plus, data, data), after(fair_processes.process("fedavg_n"), data, data)
    )


def test_mgda_prox_of_strength_zero_is_fedmgda_plus_to_the_bit():
    data = fair_processes.cohort()
    plus = after(fair_processes.process("fedmgda_plus"), data, data)
    prox = fair_processes.process("mgda_prox", proximal_strength=0.0)
    np.testing.assert_array_equal(after(prox, data, data), plus)
    assert_differ(after(fair_processes.process("mgda_prox"), data, data), plus)


def test_mgda_prox_with_one_local_step_is_fedmgda_plus():
    data = one_step_each()
    fair_processes.assert_close(
        after(fair_processes.process("mgda_prox"), data, data),
        after(fair_processes.process("fedmgda_plus"), data, data),
    )


def test_fedavg_n_of_equal_updates_steps_along_them_as_long_as_the_rate():
    alike = fair_processes.cohort(fair_processes.CLIENTS[:1] * 4)
    trained, _ = fair_processes.CLIENTS[0].local_sgd(
        START, RATE, batch_size=2, epochs=2
    )
    direction = (START - trained) / np.linalg.norm(START - trained)
    weights = after(fair_processes.process("fedavg_n", server_rate=0.5), alike)
    fair_processes.assert_close(weights, START - 0.5 * direction)


@pytest.mark.parametrize(
    ("name", "server_rate"), [("fedavg_n", 1.0), ("fedmgda_plus", 0.5)]
)
def test_one_client_alone_sets_the_direction_of_a_step_as_long_as_the_rate(
    name, server_rate
):
    alone = fair_processes.cohort(fair_processes.CLIENTS[:1])
    trained, _ = fair_processes.CLIENTS[0].local_sgd(
        START, RATE, batch_size=2, epochs=2
    )
    direction = (trained - START) / np.linalg.norm(trained - START)
    weights = after(fair_processes.process(name, server_rate=server_rate), alone)
    fair_processes.assert_close(weights - START, server_rate * direction)
