"""FedProx and FedProxM: NumPy's rounds, a closed form, FedAvg at its limits."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import (
    float32_processes,
    linear_processes,
    local_steps,
    numpy_rounds,
    problems,
    scalar_problem,
)
from tests.testing.float32_processes import built, variable
from tests.testing.linear_processes import assert_same_bits
from tests.testing.local_steps import SIZES, data_of, gradient, run, stage_of
from tests.testing.numpy_rounds import mean_delta
from tests.testing.problems import f32
from tests.testing.scalar_problem import client

SGD = tff.learning.optimizers.build_sgdm
START = problems.initial_vector()


def test_fedprox_is_numpys_local_training_with_a_pull_to_the_server():
    process = tff_algos.build_fed_prox(
        problems.linear_model(), SGD(numpy_rounds.RATE), proximal_strength=0.7
    )
    weights, _ = problems.run(process, numpy_rounds.cohort())
    delta = mean_delta(START, correction=lambda w: lambda y: 0.7 * (y - w))
    numpy_rounds.assert_exact(weights, START - delta)


def test_fedproxm_is_numpys_fedprox_with_server_momentum():
    process = tff_algos.build_fed_prox_m(
        problems.linear_model(np.float32),
        SGD(numpy_rounds.RATE),
        proximal_strength=0.7,
        server_momentum=0.5,
    )
    data = numpy_rounds.cohort(np.float32)
    weights, _ = problems.run(process, data, data)
    expected, velocity = START, 0.0
    for _ in range(2):
        step = mean_delta(expected, correction=lambda w: lambda y: 0.7 * (y - w))
        velocity = 0.5 * velocity + step
        expected = expected - velocity
    numpy_rounds.assert_close(weights, expected)


def test_fedprox_on_a_quadratic_has_the_closed_form():
    # F = a w^2 / 2: x = sqrt(a), y = 0.
    a, strength, rate, steps, start = 2.0, 0.5, 0.1, 7, 1.5
    process = tff_algos.build_fed_prox(
        scalar_problem.model(start), SGD(rate), proximal_strength=strength
    )
    weights, _ = problems.run(process, [client(np.sqrt(a), 0.0, steps)])
    shrink = (1 - f32(rate) * (a + strength)) ** steps
    expected = start * (1 - a / (a + strength) * (1 - shrink))
    assert weights[0] == pytest.approx(expected, rel=1e-9)


def test_fedprox_with_strength_zero_is_fedavg_to_the_bit():
    data = linear_processes.cohort(epochs=2)
    assert_same_bits(
        tff_algos.build_fed_prox(
            linear_processes.model(), SGD(0.1), proximal_strength=0.0
        ),
        tff_algos.build_fed_avg(linear_processes.model(), SGD(0.1)),
        data,
        data,
    )


@pytest.mark.parametrize("strength", [0.01, 10.0])
def test_fedprox_with_one_local_step_is_fedavg(strength):
    data = linear_processes.cohort(batch_size=None)
    prox = tff_algos.build_fed_prox(
        linear_processes.model(), SGD(0.1), proximal_strength=strength
    )
    linear_processes.assert_close(
        problems.run(prox, data)[0],
        problems.run(tff_algos.build_fed_avg(linear_processes.model(), SGD(0.1)), data)[
            0
        ],
    )


def test_fedproxs_delta_tends_to_zero_as_one_over_its_strength():
    # Three full-batch steps of rate * strength = 1/2 go towards the gradient over mu.
    data = linear_processes.cohort(batch_size=None, epochs=3)
    gradient = problems.mean(
        [client.gradient(START) for client in linear_processes.CLIENTS],
        [len(client.y) for client in linear_processes.CLIENTS],
    )
    limit = (1 - (1 - 1 / 2) ** 3) * gradient
    gaps = []
    for strength in (2.0**8, 2.0**11):
        process = tff_algos.build_fed_prox(
            linear_processes.model(),
            SGD(1 / (2 * strength)),
            proximal_strength=strength,
        )
        delta = START - problems.run(process, data)[0]
        gaps.append(np.linalg.norm(strength * delta - limit))
    assert gaps[0] < 0.05 * np.linalg.norm(limit)
    assert gaps[1] == pytest.approx(gaps[0] / 8, rel=0.05)


def test_fedproxm_with_momentum_zero_is_fedprox_to_the_bit():
    data = linear_processes.cohort(epochs=2)
    assert_same_bits(
        tff_algos.build_fed_prox_m(
            linear_processes.model(),
            SGD(0.1),
            proximal_strength=0.5,
            server_momentum=0.0,
        ),
        tff_algos.build_fed_prox(
            linear_processes.model(), SGD(0.1), proximal_strength=0.5
        ),
        data,
        data,
    )


def test_fedprox_holds_clients_near_the_server_where_tffs_own_drives_them_away():
    data, start = float32_processes.cohort(), problems.initial_vector(np.float32)
    stock = tff.learning.algorithms.build_weighted_fed_prox(
        variable, proximal_strength=0.5, client_optimizer_fn=SGD(0.1)
    )
    moved = [
        np.linalg.norm(problems.run(process, data)[0] - start)
        for process in (built("fedprox"), built("fedavg"), stock)
    ]
    assert moved[0] < 0.95 * moved[1]
    assert moved[2] > 1.05 * moved[1]


@pytest.mark.parametrize("prox_half", [True, False])
@pytest.mark.parametrize("algo", ["fedprox", "mgda_prox"])
def test_the_proximal_penalty_has_its_half_or_not(algo, prox_half):
    mu = 0.7
    stage = stage_of(
        algo,
        proximal_strength=mu,
        prox_half=prox_half,
        **({"epsilon": 0.0} if algo == "mgda_prox" else {}),
    )
    data, read = data_of(stage)
    deltas = []
    for number in range(3):
        w = START
        for batch in read[number]["examples"]:
            pull = (mu if prox_half else 2 * mu) * (w - START)
            w = w - f32(local_steps.RATE) * (gradient(w, batch) + pull)
        deltas.append(START - w)
    if algo == "mgda_prox":
        step = np.mean([delta / np.linalg.norm(delta) for delta in deltas], axis=0)
    else:
        step = np.average(deltas, axis=0, weights=SIZES)
    local_steps.assert_exact(run(stage, data), START - step)
