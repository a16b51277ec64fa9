"""FedAvg and FedAvgM: NumPy's rounds, what clients weigh by, exact identities."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import linear_processes, local_steps, numpy_rounds, problems
from tests.testing.linear_processes import assert_same_bits, model
from tests.testing.local_steps import SIZES, STEPS, data_of, run, stage_of, trained
from tests.testing.numpy_rounds import RATE, mean_delta
from tests.testing.problems import f32

SGD = tff.learning.optimizers.build_sgdm
START = problems.initial_vector()


@pytest.mark.parametrize("uniform", [False, True])
def test_fedavg_is_numpys_mean_of_locally_trained_weights(uniform):
    weighting = "UNIFORM" if uniform else "NUM_EXAMPLES"
    process = tff_algos.build_fed_avg(
        problems.linear_model(),
        SGD(RATE),
        SGD(0.5),
        client_weighting=tff.learning.ClientWeighting[weighting],
    )
    weights, _ = problems.run(process, numpy_rounds.cohort(), numpy_rounds.cohort())
    expected = START
    for _ in range(2):
        expected = expected - 0.5 * mean_delta(expected, uniform=uniform)
    numpy_rounds.assert_exact(weights, expected)


def test_fedavg_reports_the_mean_loss_of_training():
    process = tff_algos.build_fed_avg(problems.linear_model(), SGD(RATE))
    _, output = problems.run(process, numpy_rounds.cohort(epochs=1))
    losses, counts = [], []
    for client in numpy_rounds.CLIENTS:
        y = START
        for start in range(0, len(client.y), numpy_rounds.BATCH):
            rows = slice(start, start + numpy_rounds.BATCH)
            residual = client.x[rows] @ y[:-1] + y[-1] - client.y[rows]
            losses.append(np.mean(residual**2) / 2)
            counts.append(len(residual))
            y = y - f32(RATE) * client.gradient(y, rows)
    loss = output.metrics["client_work"]["train"]["loss"]
    assert loss == pytest.approx(problems.mean(losses, counts), rel=1e-5)


def test_client_learning_rate_decays_by_the_round():
    process = tff_algos.build_fed_avg(
        problems.linear_model(), SGD(RATE), client_learning_rate_decay=0.5
    )
    weights, _ = problems.run(
        process, numpy_rounds.cohort(), numpy_rounds.cohort(), numpy_rounds.cohort()
    )
    expected = START
    for round_num in range(3):
        expected = expected - mean_delta(expected, RATE * 0.5**round_num)
    numpy_rounds.assert_exact(weights, expected)


def test_fedavgm_is_numpys_heavy_ball_over_mean_updates():
    process = tff_algos.build_fed_avg_m(
        problems.linear_model(np.float32),
        SGD(RATE),
        server_learning_rate=0.8,
        server_momentum=0.6,
    )
    data = numpy_rounds.cohort(np.float32)
    weights, _ = problems.run(process, data, data, data)
    expected, velocity = START, 0.0
    for _ in range(3):
        velocity = 0.6 * velocity + mean_delta(expected)
        expected = expected - 0.8 * velocity
    numpy_rounds.assert_close(weights, expected)


def test_fedavgm_with_momentum_zero_is_fedavg_to_the_bit():
    data = linear_processes.cohort(epochs=2)
    assert_same_bits(
        tff_algos.build_fed_avg_m(model(), SGD(0.1), server_momentum=0.0),
        tff_algos.build_fed_avg(model(), SGD(0.1)),
        data,
        data,
    )


def test_clients_with_the_same_batches_move_as_one():
    client = linear_processes.CLIENTS[0].batches(2, 3)
    process = tff_algos.build_fed_avg(model(), SGD(0.1))
    alone, _ = problems.run(process, [client], [client])
    for size in (2, 5):
        together, _ = problems.run(process, [client] * size, [client] * size)
        linear_processes.assert_close(together, alone, rtol=1e-12, atol=1e-14)


def test_one_client_alone_sets_the_server_model():
    client = linear_processes.CLIENTS[0]
    weights, _ = problems.run(
        tff_algos.build_fed_avg(model(), SGD(0.1)), [client.batches(2, 3)]
    )
    expected, _ = client.local_sgd(
        problems.initial_vector(), problems.f32(0.1), batch_size=2, epochs=3
    )
    linear_processes.assert_close(weights, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    "weighting, weights",
    [
        ("num_examples", SIZES),
        ("uniform", (1, 1, 1)),
        ("examples_processed", (STEPS * local_steps.BATCH,) * 3),
    ],
)
def test_clients_that_take_k_steps_weigh_by_the_examples_they_have(weighting, weights):
    stage = stage_of("fedavg", client_weighting=weighting)
    data, read = data_of(stage)
    ends = {k: trained(START, own["examples"]) for k, own in read.items()}
    expected = np.average([ends[k] for k in range(3)], axis=0, weights=weights)
    local_steps.assert_exact(run(stage, data), expected)


def test_most_elements_bound_what_a_client_weighs():
    stage = stage_of("fedavg", max_elements_per_client=5)
    _, read = data_of(stage)
    told = {k: own["num_examples"] for k, own in read.items()}
    assert told == {0: [2], 1: [5], 2: [5]}


def test_per_pass_a_client_weighs_by_its_examples_however_many_it_processes():
    stage = stage_of(
        "fedavg", step_batching="per_pass", client_weighting="num_examples"
    )
    data, read = data_of(stage)
    sizes = {k: [len(y) for _, y in own["examples"]] for k, own in read.items()}
    # The last batch of one of five examples is left out; the next pass begins.
    assert sizes == {0: [2, 2, 2], 1: [4, 4, 4], 2: [4, 4, 3]}
    ends = [trained(START, read[k]["examples"]) for k in range(3)]
    local_steps.assert_exact(run(stage, data), np.average(ends, axis=0, weights=SIZES))
