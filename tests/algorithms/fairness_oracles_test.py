"""Rounds of FedMGDA's family, q-FedAvg and AFL against plain NumPy in float64."""

import functools

import numpy as np
import pytest
import scipy.optimize
from tensorflow_federated import learning

import tff_algos
from tests.testing import problems
from tests.testing.numbered_clients import numbered
from tests.testing.problems import f32
from tff_algos.experiments.settings import ClientOptimizer, ServerOptimizer

SGD = learning.optimizers.build_sgdm
NUM_EXAMPLES = learning.ClientWeighting.NUM_EXAMPLES
RATE, BATCH, EPOCHS, SERVER_RATE = 0.1, 2, 2, 0.5
CLIENTS = problems.clients(sizes=(6, 3, 7, 5))
SIZES = np.array([6, 3, 7, 5])
START = problems.initial_vector()


def cohort(clients=CLIENTS, epochs=EPOCHS, dtype=np.float64):
    return [client.batches(BATCH, epochs, dtype) for client in clients]


def delta_of(client, start, correction=lambda y: 0.0):
    """Start minus the client's locally trained weights."""
    trained, _ = client.local_sgd(start, f32(RATE), BATCH, EPOCHS, correction)
    return start - trained


def build(builder, **kwargs):
    return builder(problems.linear_model(), SGD(RATE), SGD(SERVER_RATE), **kwargs)


def assert_close(found, expected, rtol=1e-6, atol=1e-7):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


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
            [delta_of(c, w, lambda y, w=w: strength * (y - w)) for c in CLIENTS]
        )
        norms = np.linalg.norm(deltas, axis=1)
        if normalize:
            deltas /= norms[:, np.newaxis]
        weights = least_norm_weights(deltas, base, **box)
        length = np.median(norms) if median_norm_lr else 1.0
        w = w - SERVER_RATE * length * weights @ deltas
    return w, weights


def assert_is_fed_mgda(process, *args, **kwargs):
    found, output = problems.run(process, cohort(), cohort())
    expected, weights = fed_mgda_rounds(2, *args, **kwargs)
    assert_close(found, expected)
    measured = output.metrics["aggregator"]
    assert measured["lambda_min"] == pytest.approx(weights.min(), abs=1e-5)
    assert measured["lambda_max"] == pytest.approx(weights.max(), abs=1e-5)
    assert measured["qp_fallbacks"] == 0
    # Neither all alike nor one alone: the box and the norm both had a say.
    assert 0.3 < weights.max() < 0.95


UNIFORM_BASE = np.full(4, 1 / 4)


def test_fedmgda():
    assert_is_fed_mgda(build(tff_algos.build_fed_mgda), UNIFORM_BASE)


def test_fedmgda_in_a_box_around_the_share_of_the_examples():
    process = build(
        tff_algos.build_fed_mgda, epsilon=0.15, client_weighting=NUM_EXAMPLES
    )
    assert_is_fed_mgda(process, SIZES / SIZES.sum(), epsilon=0.15)


def test_fedmgda_plus_under_a_cap():
    process = build(tff_algos.build_fed_mgda_plus, cap=0.32)
    assert_is_fed_mgda(process, UNIFORM_BASE, normalize=True, cap=0.32)


def test_fedmgda_plus_whose_rate_is_the_median_norm():
    process = build(tff_algos.build_fed_mgda_plus, median_norm_lr=True)
    assert_is_fed_mgda(process, UNIFORM_BASE, normalize=True, median_norm_lr=True)


def test_mgda_prox():
    process = build(tff_algos.build_mgda_prox, proximal_strength=0.7, epsilon=0.2)
    assert_is_fed_mgda(process, UNIFORM_BASE, normalize=True, strength=0.7, epsilon=0.2)


def test_fedavg_n():
    process = build(tff_algos.build_fed_avg_n, client_weighting=NUM_EXAMPLES)
    found, _ = problems.run(process, cohort(), cohort())
    expected = START
    for _ in range(2):
        deltas = [delta_of(client, expected) for client in CLIENTS]
        directions = [delta / np.linalg.norm(delta) for delta in deltas]
        expected = expected - SERVER_RATE * problems.mean(directions, SIZES)
    assert_close(found, expected, rtol=1e-9, atol=1e-10)


def batch_losses(client, start, rate=0.0):
    """Mean losses and sizes of the batches, at the start or as it trains."""
    y, losses, sizes = start, [], []
    for first in list(range(0, len(client.y), BATCH)) * EPOCHS:
        rows = slice(first, first + BATCH)
        residual = client.x[rows] @ y[:-1] + y[-1] - client.y[rows]
        losses.append(np.mean(residual**2) / 2)
        sizes.append(len(residual))
        y = y - rate * client.gradient(y, rows)
    return np.array(losses), np.array(sizes)


def mean_loss(client, start, rate=0.0):
    losses, sizes = batch_losses(client, start, rate)
    return np.average(losses, weights=sizes)


@pytest.mark.parametrize("loss_reduction", ["mean", "total"])
def test_q_fedavg(loss_reduction):
    q, lipschitz = 1.0, 3.0
    process = build(
        tff_algos.build_q_fed_avg,
        q=q,
        lipschitz=lipschitz,
        loss_reduction=loss_reduction,
    )
    found, output = problems.run(process, cohort(), cohort())
    expected = START
    for _ in range(2):
        numerator, denominator, losses = 0.0, 0.0, []
        for client in CLIENTS:
            loss = mean_loss(client, expected)
            if loss_reduction == "total":
                loss = batch_losses(client, expected)[0].sum()
            gradient = lipschitz * delta_of(client, expected)
            numerator = numerator + loss**q * gradient
            denominator += q * loss ** (q - 1) * gradient @ gradient
            denominator += lipschitz * loss**q
            losses.append(loss)
        expected = expected - SERVER_RATE * numerator / denominator
    assert_close(found, expected)
    assert output.metrics["client_work"]["max_loss"] == pytest.approx(max(losses))
    assert output.metrics["aggregator"]["mean_loss"] == pytest.approx(np.mean(losses))


GAMMA, NUM_CLIENTS = 0.1, 5


@functools.cache
def afl(returned_model="average", afl_loss="examples"):
    return build(
        tff_algos.build_agnostic_federated_learning,
        afl_loss=afl_loss,
        num_clients=NUM_CLIENTS,
        mixture_learning_rate=GAMMA,
        returned_model=returned_model,
    )


def on_simplex(point, total):
    """The nearest point that is nowhere negative and has this sum."""
    descending = np.sort(point)[::-1]
    shifts = (np.cumsum(descending) - total) / np.arange(1, len(point) + 1)
    return np.maximum(point - shifts[descending > shifts][-1], 0)


def afl_round(w, mixture, taking_part):
    """A round in which clients of these numbers count."""
    chosen = [CLIENTS[number] for number in taking_part]
    own = mixture[taking_part]
    step = problems.mean([delta_of(client, w) for client in chosen], own)
    losses = np.array([mean_loss(client, w, rate=f32(RATE)) for client in chosen])
    raised = mixture.copy()
    raised[taking_part] = on_simplex(own + GAMMA * losses, own.sum())
    return w - SERVER_RATE * step, raised, losses


def afl_rounds(cohorts):
    """Weights and mixtures after every round of NumPy's AFL."""
    w, mixture, trace = START, np.full(NUM_CLIENTS, 1 / NUM_CLIENTS), []
    for taking_part in cohorts:
        w, mixture, losses = afl_round(w, mixture, taking_part)
        trace.append((w, mixture, losses))
    return trace


def run_afl(process, cohorts):
    """The states and metrics after every round of AFL."""
    state, outputs = process.initialize(), []
    for clients in cohorts:
        outputs.append(process.next(state, clients))
        state = outputs[-1].state
    return outputs


def test_afl_with_clients_that_come_and_go():
    taking_part = [[0, 1, 2, 3], [1, 3], [3, 0, 2]]
    cohorts = [
        numbered(cohort([CLIENTS[k] for k in numbers]), numbers)
        for numbers in taking_part
    ]
    outputs = run_afl(afl("last"), cohorts)
    trace = afl_rounds(taking_part)
    for output, (w, mixture, losses) in zip(outputs, trace, strict=True):
        assert_close(problems.vector_of(afl("last"), output.state), w)
        assert_close(output.state.client_work.mixture, mixture)
        measured = output.metrics["client_work"]
        assert measured["lambda_min"] == pytest.approx(mixture.min(), abs=1e-6)
        assert measured["lambda_max"] == pytest.approx(mixture.max(), rel=1e-6)
        assert measured["max_loss"] == pytest.approx(losses.max(), rel=1e-6)
    mixtures = [mixture for _, mixture, _ in trace]
    # The fifth client never comes, the first and the third not to the second round.
    assert all(mixture[4] == 0.2 for mixture in mixtures)
    np.testing.assert_array_equal(mixtures[1][[0, 2]], mixtures[0][[0, 2]])
    assert np.max(np.abs(mixtures[1] - mixtures[0])) > 0.1


def test_afls_loss_is_by_default_the_mean_over_its_steps():
    w, mixture = START, np.full(NUM_CLIENTS, 1 / NUM_CLIENTS)
    process = afl("last", "batches")
    for output in run_afl(process, [numbered(cohort())] * 3):
        losses = np.array(
            [batch_losses(client, w, f32(RATE))[0].mean() for client in CLIENTS]
        )
        step = problems.mean([delta_of(client, w) for client in CLIENTS], mixture[:4])
        w = w - SERVER_RATE * step
        mixture[:4] = on_simplex(mixture[:4] + GAMMA * losses, mixture[:4].sum())
        assert_close(problems.vector_of(process, output.state), w)
        assert_close(output.state.client_work.mixture, mixture)


def test_afl_as_published_takes_one_gradient_of_one_batch():
    process = build(
        tff_algos.build_agnostic_federated_learning,
        num_clients=4,
        mixture_learning_rate=GAMMA,
        afl_mode="batch",
        returned_model="last",
    )
    firsts = [problems.Client(client.x[:BATCH], client.y[:BATCH]) for client in CLIENTS]
    w, mixture = START, np.full(4, 0.25)
    for output in run_afl(process, [numbered(cohort())] * 3):
        gradients = np.array([first.gradient(w) for first in firsts])
        residuals = [first.x @ w[:-1] + w[-1] - first.y for first in firsts]
        losses = np.array([np.mean(residual**2) / 2 for residual in residuals])
        w = w - SERVER_RATE * f32(RATE) * mixture @ gradients
        mixture = on_simplex(mixture + GAMMA * losses, 1.0)
        assert_close(problems.vector_of(process, output.state), w)
        assert_close(output.state.client_work.mixture, mixture)
    assert np.max(np.abs(mixture - 0.25)) > 0.1


def test_afl_returns_the_mean_of_the_models_of_all_rounds():
    everyone = [0, 1, 2, 3]
    cohorts = [numbered(cohort())] * 3
    trace = afl_rounds([everyone] * 3)
    models = [w for w, _, _ in trace]
    outputs = run_afl(afl(), cohorts)
    for number, output in enumerate(outputs, start=1):
        average = np.mean(models[:number], axis=0)
        assert_close(problems.vector_of(afl(), output.state), average)
    # It trains on from the last one.
    last = outputs[-1].state.global_model_weights.trainable
    assert_close(np.append(*last), models[-1])
    assert np.max(np.abs(models[-1] - average)) > 0.1


def test_afl_leaves_the_mixture_of_invalid_clients_alone():
    broken = problems.Client(np.full((3, problems.NUM_FEATURES), np.nan), np.ones(3))
    empty = problems.Client(np.zeros((0, problems.NUM_FEATURES)), np.zeros(0))
    clients = [CLIENTS[0], broken, CLIENTS[2], empty]
    outputs = run_afl(afl("last"), [numbered(cohort()), numbered(cohort(clients))])
    trace = afl_rounds([[0, 1, 2, 3], [0, 2]])
    assert_close(problems.vector_of(afl("last"), outputs[-1].state), trace[-1][0])
    first, second = (output.state.client_work.mixture for output in outputs)
    assert_close(second, trace[-1][1])
    np.testing.assert_array_equal(second[[1, 3, 4]], first[[1, 3, 4]])
    measured = outputs[-1].metrics["client_work"]
    assert measured["num_non_finite_clients"] == 1
    assert measured["num_empty_clients"] == 1
    assert measured["max_loss"] == pytest.approx(trace[-1][2].max(), rel=1e-6)


@pytest.mark.parametrize("returned_model", ["average", "last"])
def test_afl_trains_on_from_weights_that_are_set(returned_model):
    process, data = afl(returned_model), numbered(cohort())
    trained = run_afl(process, [data, data])[-1].state
    w = np.arange(6, dtype=np.float64)
    weights = learning.models.ModelWeights((w[:-1], w[-1]), ())
    state = process.set_model_weights(trained, weights)
    np.testing.assert_array_equal(problems.vector_of(process, state), w)
    # What clients weigh is no part of the model, and the mean begins anew.
    mixture = np.asarray(state.client_work.mixture)
    np.testing.assert_array_equal(mixture, trained.client_work.mixture)
    expected, _, _ = afl_round(w, mixture, [0, 1, 2, 3])
    after = process.next(state, data).state
    assert_close(problems.vector_of(process, after), expected)


def test_the_server_rate_decays_by_the_period():
    server = ServerOptimizer(
        server_learning_rate=0.8,
        server_learning_rate_decay=0.5,
        server_learning_rate_decay_period=2,
    )
    process = tff_algos.build_fed_avg(
        problems.linear_model(), SGD(RATE), server.build()
    )
    found, _ = problems.run(process, *[cohort()] * 5)
    expected = START
    for rate in (0.8, 0.8, 0.4, 0.4, 0.2):
        deltas = [delta_of(client, expected) for client in CLIENTS]
        expected = expected - f32(rate) * problems.mean(deltas, SIZES)
    assert_close(found, expected)


def test_the_rate_of_a_server_with_momentum_decays_by_the_period():
    server = ServerOptimizer(
        server_learning_rate=0.8,
        server_momentum=0.5,
        server_learning_rate_decay=0.25,
        server_learning_rate_decay_period=2,
    )
    process = tff_algos.build_fed_avg(
        problems.linear_model(np.float32),
        SGD(RATE),
        server.build(),
    )
    found, _ = problems.run(process, *[cohort(dtype=np.float32)] * 3)
    expected, velocity = START, 0.0
    for rate in (0.8, 0.8, 0.2):
        deltas = [delta_of(client, expected) for client in CLIENTS]
        velocity = 0.5 * velocity + problems.mean(deltas, SIZES)
        expected = expected - rate * velocity
    assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_the_momentum_of_clients_starts_afresh_in_every_round():
    clients = ClientOptimizer(client_learning_rate=RATE, client_momentum=0.6)
    process = tff_algos.build_fed_avg(
        problems.linear_model(np.float32), clients.build()
    )
    found, _ = problems.run(process, *[cohort(dtype=np.float32)] * 2)
    expected = START
    for _ in range(2):
        trained = [_heavy_ball(client, expected, 0.6) for client in CLIENTS]
        expected = problems.mean(trained, SIZES)
    assert_close(found, expected, rtol=1e-5, atol=1e-6)


def _heavy_ball(client, start, momentum):
    y, velocity = start, 0.0
    for first in list(range(0, len(client.y), BATCH)) * EPOCHS:
        gradient = client.gradient(y, slice(first, first + BATCH))
        velocity = momentum * velocity + gradient
        y = y - RATE * velocity
    return y
